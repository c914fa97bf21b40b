// Windows whose memory the peer of a link has mapped or opened, and accesses by itself until it says that it does no more. Each is
// held as in use, which keeps its memory from being reused: also when the link is broken, as long as the peer lives.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "cokv/runtime/memory_handle.hpp"
#include "link/window_layout.hpp"
#include "link/window_state.hpp"

namespace cokv::detail {

// A window, and how it is accessed: put or get.
struct window_key {
  std::uint64_t id = 0, generation = 0;
  window_access access = window_access::put;
  friend auto operator<=>(const window_key&, const window_key&) = default;
};

class lent_windows {
 public:
  static constexpr std::uint32_t most = 4096;  // at once
  using descriptor = std::shared_ptr<const int>;
  struct grant {
    window_layout layout;
    std::vector<descriptor> passed;
  };

  // What the peer can access by itself.
  struct welcome {
    bool host = true;
    device_reach* device = nullptr;  // of its own memory; null: none
  };

  // errc::unsupported for memory that can't be shared, or is not welcome, or for too much of it. `on_revoke` is called
  // once, when the window is to be given back.
  result<grant> lend(std::shared_ptr<window_state> window, window_access access, welcome what,
                     std::function<void()> on_revoke);
  void returned(const window_key& key) { lent_.erase(key); }
  bool has(const window_key& key) const { return lent_.contains(key); }

  bool to_devices() const noexcept { return !opened_.empty(); }
  bool empty() const noexcept { return lent_.empty() && opened_.empty(); }
  // All that is lent, to be held until the peer is gone.
  std::shared_ptr<void> take();

 private:
  struct lent {
    std::vector<buffer> pieces;  // the window forgets them when it is revoked
    std::unique_ptr<window_use> use;
  };
  struct memory {
    std::weak_ptr<const int> file;
    std::uint32_t number = 0;
  };
  // Memory of a device that the peer has opened stays allocated until it is gone: CUDA leaves undefined what becomes of
  // memory that is freed before.
  struct opened {
    buffer held;
    std::uint32_t number = 0;
  };
  error_code lay_out_host(const std::vector<buffer>& pieces, grant& out);
  error_code lay_out_device(const std::vector<buffer>& pieces, device_reach& device, grant& out);
  static void add(window_layout& layout, std::uint32_t number, const memory_handle& h);

  std::map<window_key, lent> lent_;
  std::map<const int*, memory> memories_;  // that the peer has
  std::map<std::array<std::byte, 64>, opened> opened_;
  std::vector<std::uint32_t> forgotten_;  // the peer is to be told
  std::uint32_t next_number_ = 0;
};

}  // namespace cokv::detail

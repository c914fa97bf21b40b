// A window from the inside: who uses its memory now, and who waits for them to be done.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cokv/kvstream/window.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"
#include "cokv/runtime/error.hpp"
#include "link/device_reach.hpp"
#include "link/link_roster.hpp"

namespace cokv::detail {

class window_use;

struct window_state {
  std::shared_ptr<window_registry> registry;
  window_ref ref;
  window_access access = window_access::both;
  std::vector<buffer> pieces;
  std::vector<std::uint64_t> begins;  // of each piece
  bool host = true;                   // all of them are the host's
  std::vector<window_use*> users;
  operation_list<window_waiters::waiter> revoking;
  operation_list<window_waiters::waiter> awaiting_commit;
  bool revoked = false;
  bool committed = false;
  std::uint64_t put = 0, got = 0;

  void revoke();
  void commit();
  // errc::out_of_range beyond its end.
  error_code check(std::uint64_t offset, std::uint64_t length) const {
    return offset > ref.size || length > ref.size - offset ? make_error_code(errc::out_of_range) : error_code();
  }
  // Committed, and whoever was putting has let go.
  bool whole() const;
  void settle();  // a user has gone

 private:
  void turn_away(window_access those);
};

// The right to touch a window's memory while it is held. `on_revoke` is called once, when the window is revoked (or, for
// a put, committed): the holder lets go as soon as it can.
class window_use {
 public:
  window_use(std::shared_ptr<window_state> of, window_access how, std::function<void()> on_revoke);
  window_use(const window_use&) = delete;
  window_use& operator=(const window_use&) = delete;
  ~window_use();

  window_state& window() const noexcept { return *window_; }
  window_access how() const noexcept { return how_; }
  void revoked() {
    const auto f = std::exchange(on_revoke_, nullptr);  // may destroy *this
    if (f) f();
  }
  // Nobody is there any more who could let go earlier.
  void keep() noexcept { on_revoke_ = nullptr; }

 private:
  std::shared_ptr<window_state> window_;
  window_access how_;
  std::function<void()> on_revoke_;
};

class window_registry : public std::enable_shared_from_this<window_registry> {
 public:
  window_registry(asio::any_io_executor ex, std::size_t limit);

  result<std::shared_ptr<window_state>> add(std::vector<buffer> pieces, window_access access);
  void remove(std::uint64_t id);
  std::size_t size() const noexcept { return used_; }

  // errc::stale_reference for a window that is not there (any more), errc::permission_denied for one that may not be
  // accessed so, errc::closed for a put into one that is committed, errc::out_of_range beyond its end.
  result<std::shared_ptr<window_state>> find(const window_ref& ref, window_access access, std::uint64_t offset,
                                             std::uint64_t length) const;

  const prepared_executor executor;
  link_roster links;
  std::unique_ptr<device_reach> reach;  // of a device whose memory the host can't; or null

 private:
  std::size_t limit_;
  std::size_t used_ = 0;
  std::vector<std::shared_ptr<window_state>> windows_;  // by id
  std::vector<std::uint64_t> free_;
};

// [offset, offset + length) of pieces that lie one behind the other.
std::vector<buffer> range_of(const window_state& w, std::uint64_t offset, std::uint64_t length);
void append_range_of(std::vector<buffer>& out, const window_state& w, std::uint64_t offset, std::uint64_t length);
std::vector<buffer> range_of(const std::vector<buffer>& pieces, std::uint64_t offset, std::uint64_t length);

}  // namespace cokv::detail

// Memory of this process that peers may put into or get from, over any link of link.hpp. A window is named by a
// window_ref, which travels as the application likes: in a ticket, in a message. Its generation is random, so a
// reference to a window of before, or a guessed one, reaches nothing.
//
//     cokv::window_table windows(ex);                                  // one a process; links serve what is in it
//     cokv::window landing = windows.expose(view.pieces(what).value(), cokv::window_access::put).value();
//     send_ticket(landing.ref());
//     ...
//     co_await landing.async_committed();                              // the peer has put everything, verified
//     co_await landing.async_revoke();                                 // from here on no peer writes into it
//
// |              | window::async_revoke                                                                          |
// |--------------|-----------------------------------------------------------------------------------------------|
// | at once      | new puts and gets of peers are refused with errc::stale_reference, the rest of one that comes |
// |              | in is dropped                                                                                 |
// | completes    | when no peer reads or writes the memory any more, or could: a chunk that is being sent is     |
// |              | sent first, as fast as its reader reads; one that stops is given up on after                  |
// |              | link_options.silence. Over shm:// one that has mapped or opened the memory has let go of it,  |
// |              | or is dead                                                                                    |
// | cancellation | every kind ends the wait; the window stays revoked                                            |
// | errors       | none of its own                                                                               |
//
// async_committed completes when a peer said that everything is there (sink::async_commit over its link) and nobody else
// puts any more: from then on no put is taken. errc::closed when the window is revoked first. Whether the peer is still
// alive it does not know: wait for its link's end beside it. Every kind of cancellation ends the wait.
//
// Memory of a device that the host can't reach is exposed after window_table::stage(): what is put there comes into pinned
// memory, is verified, and copied by the device before the put is answered; what is got goes the other way.
//
// A destroyed window is revoked; its buffers are referenced until their last reader or writer is done, which keeps
// blocks of a kv_pool in quarantine. All of it belongs to one context.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/detail/initiate.hpp"

namespace cokv {

class device;

// Names a window of a peer: 24 bytes that mean nothing elsewhere.
struct window_ref {
  std::uint64_t id = 0;
  std::uint64_t generation = 0;
  std::uint64_t size = 0;  // bytes
  friend bool operator==(const window_ref&, const window_ref&) = default;
};

// Pinned memory that links move a device's memory through, each way: it bounds what is under way between network and
// device.
struct device_staging {
  std::size_t chunk = std::size_t{1} << 20;  // links cut what they move to it, 4 KiB at least
  std::size_t count = 8;
};

enum class window_access : std::uint8_t { put = 1, get = 2, both = 3 };

namespace detail {
class window_registry;
struct window_state;
struct window_waiters {
  using waiter = operation<void(error_code)>;
  using beginning = detail::beginning<void(error_code)>;
};
}  // namespace detail

class [[nodiscard]] window {
 public:
  window() = default;
  window(window&& other) noexcept = default;
  window& operator=(window&& other) noexcept;
  ~window() { drop(); }

  explicit operator bool() const noexcept { return state_ != nullptr; }
  window_ref ref() const;
  bool committed() const noexcept;
  std::uint64_t bytes_put() const noexcept;  // by peers, verified
  std::uint64_t bytes_got() const noexcept;  // sent to peers

  // As async_revoke, for whoever does not wait.
  void revoke() noexcept;

  // void(error_code)
  template <class Token = asio::deferred_t>
  auto async_revoke(Token&& token = Token()) {
    return detail::initiate<void(error_code)>(
        std::forward<Token>(token), executor(),
        [s = state_](detail::window_waiters::beginning& begin) { revoke(s, begin); });
  }

  // void(error_code)
  template <class Token = asio::deferred_t>
  auto async_committed(Token&& token = Token()) {
    return detail::initiate<void(error_code)>(
        std::forward<Token>(token), executor(),
        [s = state_](detail::window_waiters::beginning& begin) { await_commit(s, begin); });
  }

 private:
  friend class window_table;
  explicit window(std::shared_ptr<detail::window_state> s) : state_(std::move(s)) {}
  asio::any_io_executor executor() const;
  static void revoke(const std::shared_ptr<detail::window_state>& state, detail::window_waiters::beginning& begin);
  static void await_commit(const std::shared_ptr<detail::window_state>& s, detail::window_waiters::beginning& begin);
  void drop() noexcept;

  std::shared_ptr<detail::window_state> state_;
};

// Cheap to copy: copies are the same table.
class window_table {
 public:
  explicit window_table(asio::any_io_executor ex, std::size_t limit = 65536);

  asio::any_io_executor get_executor() const;
  std::size_t size() const noexcept;  // windows exposed now

  // Windows may be of this device's memory from here on, and links that are made from here on put and get it. One device
  // a table: errc::already_exists. errc::invalid_argument: chunks too small, or none; the device's, e.g.
  // errc::out_of_memory. Takes as long as pinning that memory does.
  error_code stage(device& d, device_staging how = {});

  // The pieces, one behind the other, are the window's bytes. errc::queue_full beyond the table's limit,
  // errc::wrong_device for memory that the host can't reach without stage(), errc::invalid_argument for no bytes at all.
  result<window> expose(std::vector<buffer> pieces, window_access access);

  const std::shared_ptr<detail::window_registry>& registry() const noexcept { return registry_; }

 private:
  std::shared_ptr<detail::window_registry> registry_;
};

}  // namespace cokv

// staging_pool: a fixed set of equal buffers, pinned where a device needs that, through which transfers are packed.
// Waiting for one is the back-pressure: however much is to be moved, no more than this is in flight. First come, first
// served.
//
//     staging_pool staging = staging_pool::make(device, 1 << 20, 16).value();
//     buffer piece = co_await staging.async_acquire();      // goes back when its last handle is gone
//
// | async_acquire | |
// |---|---|
// | completes | success with a buffer of buffer_bytes() |
// | cancellation | every kind: leaves the queue, operation_aborted |
// | the buffer | the caller's, shared with what it gives it to (a stream keeps it until it is done) |
//
// Destroying the pool completes waiters as operation_aborted; buffers that are out stay valid. Handles to a buffer may
// be dropped on any thread, the pool itself is used from its context's.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv {

namespace detail {

class staging_state;
using staging_request = beginning<void(error_code, buffer)>;

}  // namespace detail

class staging_pool {
 public:
  using executor_type = asio::any_io_executor;

  // Buffers of one size, at least one.
  staging_pool(asio::any_io_executor ex, std::vector<buffer> buffers);
  staging_pool(staging_pool&&) noexcept = default;
  staging_pool& operator=(staging_pool&& o) noexcept;
  ~staging_pool();

  // `count` buffers of a device. errc::out_of_memory, errc::unsupported, errc::invalid_argument (none, or empty ones).
  static result<staging_pool> make(device& from, std::size_t bytes, std::size_t count,
                                   memory_kind kind = memory_kind::pinned);

  executor_type get_executor() const;
  std::size_t buffer_bytes() const noexcept;
  std::size_t count() const noexcept;
  std::size_t available() const noexcept;

  // Nothing while others wait: a try never overtakes.
  std::optional<buffer> try_acquire();

  // void(error_code, buffer)
  template <class Token = asio::deferred_t>
  auto async_acquire(Token&& token = Token()) {
    return detail::initiate<void(error_code, buffer)>(
        std::forward<Token>(token), executor(),
        [state = state_](detail::staging_request& begin) { acquire(*state, begin); });
  }

 private:
  const detail::prepared_executor& executor() const noexcept;
  static void acquire(detail::staging_state& state, detail::staging_request& begin);

  std::shared_ptr<detail::staging_state> state_;
};

}  // namespace cokv

// What nearly every file includes and instantiates, compiled once for all rooms and their tests: a template that is
// instantiated here (CMake has Clang do so at the header's end) isn't instantiated again in each file. Files still
// include what they use.
#pragma once
#include "cokv/runtime/asio.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::precompiled {

template <class T>
awaitable<void> operation_of(asio::any_io_executor ex) {
  auto start = [](asio::any_completion_handler<void(error_code, T)>) {};
  using signature = void(error_code, T);
  co_await detail::initiate_erased<signature>(asio::deferred, ex, start);
  co_await detail::initiate_erased<signature>(as_result, ex, start);
  co_await detail::initiate_erased<signature>(asio::as_tuple(asio::deferred), ex, start);
}

inline awaitable<void> operations(asio::any_io_executor ex, byte_stream& stream, semaphore& permits) {
  auto& time = clock::of(ex);
  co_await time.async_wait_for({}, asio::deferred);
  co_await time.async_wait_for({}, asio::as_tuple(asio::deferred));
  co_await permits.async_acquire();
  auto start = [](asio::any_completion_handler<void(error_code)>) {};
  co_await detail::initiate_erased<void(error_code)>(asio::deferred, ex, start);
  co_await detail::initiate_erased<void(error_code)>(as_result, ex, start);
  co_await detail::initiate_erased<void(error_code)>(asio::as_tuple(asio::deferred), ex, start);
  co_await operation_of<std::size_t>(ex);
  co_await asio::async_write(stream, asio::const_buffer(), asio::as_tuple(asio::deferred));
  co_await with(task_group{}, [](task_group& group) { group.spawn([]() -> awaitable<void> { co_return; }); });
  asio::co_spawn(ex, []() -> awaitable<void> { co_return; }, asio::detached);
  detail::run_as_operation<error_code>(
      ex, []() -> awaitable<error_code> { co_return error_code(); }(), [](error_code) {});
}

}  // namespace cokv::precompiled

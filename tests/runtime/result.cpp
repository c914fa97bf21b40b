#include "cokv/runtime/result.hpp"

#include <doctest/doctest.h>

#include <boost/asio/use_future.hpp>
#include <memory>
#include <string>

#include "cokv/runtime/error.hpp"

using namespace cokv;

namespace {

template <class Token = asio::deferred_t>
auto async_fake(error_code ec, std::unique_ptr<int> value, Token&& token = Token()) {
  return asio::async_initiate<Token, void(error_code, std::unique_ptr<int>)>(
      [](auto handler, error_code e, std::unique_ptr<int> v) {
        auto ex = asio::get_associated_executor(handler);
        asio::post(ex, [h = std::move(handler), e, v = std::move(v)]() mutable { std::move(h)(e, std::move(v)); });
      },
      token, ec, std::move(value));
}

template <class Token = asio::deferred_t>
auto async_nothing(asio::any_io_executor ex, error_code ec, Token&& token = Token()) {
  return asio::async_initiate<Token, void(error_code)>(
      [ex](auto handler, error_code e) { asio::post(ex, [h = std::move(handler), e]() mutable { std::move(h)(e); }); },
      token, ec);
}

}  // namespace

TEST_CASE("as_result gives the value, or the error in its place") {
  asio::io_context ctx;
  int done = 0;
  asio::co_spawn(
      ctx,
      [&]() -> awaitable<void> {
        result<std::unique_ptr<int>> good = co_await async_fake({}, std::make_unique<int>(7), as_result);
        CHECK(good);
        CHECK(**good == 7);
        auto bad = co_await async_fake(errc::closed, nullptr, as_result);
        CHECK(!bad);
        CHECK(bad.error() == errc::closed);
        CHECK_THROWS_AS(bad.value(), boost::system::system_error);
        result<void> nothing = co_await async_nothing(ctx.get_executor(), errc::deadline, as_result);
        CHECK(nothing.error() == errc::deadline);
        CHECK(co_await async_nothing(ctx.get_executor(), {}, as_result(asio::use_awaitable)));
        ++done;
      },
      asio::detached);
  ctx.run();
  CHECK(done == 1);
}

TEST_CASE("as_result adapts callbacks and futures and passes executor and slot through") {
  asio::io_context ctx;
  int called = 0;
  asio::cancellation_signal signal;
  async_nothing(ctx.get_executor(), errc::closed, as_result([&](result<void> r) {
                  CHECK(r.error() == errc::closed);
                  ++called;
                }));
  async_fake({}, std::make_unique<int>(3),
             as_result(asio::bind_executor(ctx, [&](result<std::unique_ptr<int>> r) { called += **r; })));
  auto future = async_nothing(ctx.get_executor(), errc::closed, as_result(asio::use_future));
  asio::steady_timer timer(ctx, std::chrono::hours(1));
  timer.async_wait(as_result(asio::bind_cancellation_slot(signal.slot(), [&](result<void> r) {
    CHECK(r.error() == asio::error::operation_aborted);
    called += 10;
  })));
  asio::post(ctx, [&] { signal.emit(asio::cancellation_type::all); });
  ctx.run();
  CHECK(called == 14);
  CHECK(future.get().error() == errc::closed);
}

#include "file_pool.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <system_error>

using namespace cokv;

TEST_CASE("small file operations are taken several at a time, and each is answered; one that waits can be withdrawn") {
  asio::io_context ctx(1);
  detail::file_pool pool(ctx.get_executor(), 1);
  std::promise<void> go;
  std::vector<int> ended;
  asio::cancellation_signal signal;
  const auto start = [&](int i, std::size_t bytes, auto work) {
    pool.run(
        asio::any_completion_handler<void(error_code)>(
            asio::bind_cancellation_slot(i == 5 ? signal.slot() : asio::cancellation_slot(),
                                         [&, i](error_code ec) { ended.push_back(ec ? -i : i); })),
        [work] { return work(), std::tuple(error_code()); }, bytes);
  };
  start(1, 100, [&] { go.get_future().wait(); });
  for (int i = 2; i < 40; ++i) start(i, i % 7 == 0 ? detail::file_pool::taken_bytes : 100, [] {});
  signal.emit(asio::cancellation_type::total);
  go.set_value();
  ctx.run();
  REQUIRE(ended.size() == 39);
  CHECK(std::count(ended.begin(), ended.end(), -5) <= 1);  // unless the first thread came late and took it
  std::erase(ended, -5);
  std::erase(ended, 5);
  CHECK(std::is_sorted(ended.begin(), ended.end()));
  CHECK(ended.back() == 39);
  pool.stop();
}

TEST_CASE("a file operation for which the system gives no thread is an error, and later ones work") {
  asio::io_context ctx(1);
  int refuse = 1;
  detail::file_pool pool(ctx.get_executor(), 2, [&](std::function<void()> f) {
    if (refuse-- > 0) throw std::system_error(EAGAIN, std::system_category());
    return std::thread(std::move(f));
  });
  std::vector<error_code> ended;
  auto start = [&] {
    pool.run(asio::any_completion_handler<void(error_code)>([&](error_code ec) { ended.push_back(ec); }),
             [] { return std::tuple(error_code()); });
  };
  auto run = [&] {
    ctx.restart();
    ctx.run();
  };
  start();
  run();
  start();
  run();
  refuse = 1;  // the second thread: the first serves alone
  for (int i = 0; i < 8; ++i) start();
  run();
  REQUIRE(ended.size() == 10);
  CHECK(ended[0] == boost::system::errc::resource_unavailable_try_again);
  for (std::size_t i = 1; i < ended.size(); ++i) CHECK(!ended[i]);
  pool.stop();
}

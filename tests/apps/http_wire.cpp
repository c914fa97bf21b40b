#include "http/wire.hpp"

#include "cokv/runtime/deadline.hpp"
#include "http_fixture.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using http::wire;

namespace {

struct ends {
  byte_stream far;
  std::unique_ptr<wire> near;

  std::string ahead() const {
    const auto all = near->ahead.data();
    return {static_cast<const char*>(all.data()), all.size()};
  }
};

awaitable<ends> connected(asio::any_io_executor ex) {
  auto& net = network::of(ex);
  auto door = net.listen({"localhost", 0}).value();
  auto [order, ec1, client, ec2, server] =
      co_await asio::experimental::make_parallel_group(net.async_connect(door.local_endpoint()), door.async_accept())
          .async_wait(asio::experimental::wait_for_all(), asio::deferred);
  if (ec1 || ec2) throw boost::system::system_error(ec1 ? ec1 : ec2);
  co_return ends{std::move(client), std::make_unique<wire>(std::move(server), 80 << 10)};
}

awaitable<void> send(byte_stream& to, std::string_view text) {
  co_await asio::async_write(to, asio::buffer(text), asio::deferred);
}

std::span<const asio::mutable_buffer> one(const asio::mutable_buffer& b) { return {&b, 1}; }

}  // namespace

TEST_CASE("wire: a read ahead that was given up goes on, and brings its bytes to the next one") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto e = co_await connected(ex);
    CHECK((co_await e.near->read_ahead(10ms)).error() == errc::deadline);
    co_await send(e.far, "a");
    co_await pause(10ms);
    CHECK(e.ahead() == "a");
    CHECK((co_await e.near->read_ahead(10ms)).error() == errc::deadline);
    co_await send(e.far, "bcd");
    while (e.ahead() != "abcd") CHECK((co_await e.near->read_ahead(duration::max())).has_value());
  });
}

TEST_CASE("wire: what lies ahead may be taken while more of it is read") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto e = co_await connected(ex);
    std::string got;
    e.near->watch([](error_code) {});
    for (int i = 0; i < 200; ++i) {
      co_await send(e.far, std::to_string(i) + ' ');
      if (i % 3 == 0) co_await pause(1ms);
      const auto n = std::min<std::size_t>(e.near->ahead.size(), static_cast<std::size_t>(i % 7));
      got += e.ahead().substr(0, n);
      e.near->ahead.consume(n);
    }
    co_await pause(10ms);
    got += e.ahead();
    std::string sent;
    for (int i = 0; i < 200; ++i) sent += std::to_string(i) + ' ';
    CHECK((got == sent));
  });
}

TEST_CASE("wire: a read into other memory takes what a read ahead brings, and none is lost between the two") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto e = co_await connected(ex);
    e.near->watch([](error_code) {});
    e.near->unwatch();  // its read goes on
    std::string sent(100'000, ' '), got;
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>('a' + i * i % 23);
    std::string into(5000, ' ');
    auto v = co_await with(task_group{}, [&](task_group& group) {
      group.spawn([&] { return send(e.far, sent); });
      group.spawn([&]() -> awaitable<void> {
        while (got.size() < sent.size()) {
          const auto n = co_await e.near->read_some(one(asio::buffer(into)), 1s);
          CHECK(n.has_value());
          if (!n) co_return;
          got += into.substr(0, *n);
        }
      });
    });
    CHECK(v);
    CHECK((got == sent));
  });
}

TEST_CASE("wire: a watch tells of each read and of the end, and is as full as `ahead`") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto e = co_await connected(ex);
    std::size_t reads = 0;
    std::vector<error_code> ended;
    e.near->watch([&](error_code ec) { ec ? ended.push_back(ec) : void(++reads); });
    const std::string much(16 << 20, 'x');
    auto sending = with_deadline(send(e.far, much), 100ms);
    CHECK((co_await std::move(sending)).error() == errc::deadline);
    CHECK(reads != 0);
    CHECK(e.near->ahead.size() == e.near->ahead.max_size());
    CHECK((co_await e.near->read_ahead(1s)).error() == errc::too_large);
    e.near->unwatch();
    e.near->ahead.consume(e.near->ahead.size());
    e.far.close();
    e.near->watch([&](error_code ec) {
      if (ec) ended.push_back(ec);
      e.near->ahead.consume(e.near->ahead.size());
    });
    co_await pause(100ms);
    REQUIRE(ended.size() == 1);
    e.near->watch([&](error_code ec) { ended.push_back(ec); });  // still so
    CHECK(ended.size() == 2);
    CHECK(ended[0] == ended[1]);
    CHECK((co_await e.near->read_ahead(1s)).error() == ended[0]);
  });
}

TEST_CASE("wire: transfers that are late have ended, and moved nothing") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto e = co_await connected(ex);
    std::string into(10, ' ');
    for (int i = 0; i < 3; ++i)
      CHECK((co_await e.near->read_some(one(asio::buffer(into)), 5ms)).error() == errc::deadline);
    co_await send(e.far, "abc");
    CHECK((co_await e.near->read_some(one(asio::buffer(into)), 1s)).value() != 0);
    CHECK(into[0] == 'a');
    const std::string much(1 << 20, 'y');
    const asio::const_buffer from = asio::buffer(much);
    result<std::size_t> n = std::size_t(0);
    std::size_t sent = 0;
    while ((n = co_await e.near->write_some({&from, 1}, 5ms))) sent += *n;
    CHECK(n.error() == errc::deadline);
    e.near.reset();
    std::string got(sent + 1, ' ');
    auto [ec, all] = co_await asio::async_read(e.far, asio::buffer(got), asio::as_tuple(asio::deferred));
    CHECK(all == sent);
  });
}

TEST_CASE("wire: whatever is cancelled or destroyed at whatever step ends") {
  const auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto e = co_await connected(ex);
    std::string into(64, ' ');
    const asio::const_buffer from = asio::buffer(into);
    e.near->watch([](error_code) {});
    co_await send(e.far, "abcdefgh");
    (void)co_await e.near->read_ahead(1ms);
    e.near->unwatch();
    (void)co_await e.near->read_some(one(asio::buffer(into)), 1ms);
    (void)co_await e.near->read_some(one(asio::buffer(into)), 1ms);
    (void)co_await e.near->write_some({&from, 1}, 1ms);
  };
  cancel_at_every_step(body);
  destroy_at_every_step(body);
}

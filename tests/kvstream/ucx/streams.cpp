// Streams over UCX by themselves: every promise of a byte_stream.
#include "cokv/runtime/deadline.hpp"
#include "kvstream/transfers.hpp"
#include "link/link_url.hpp"
#include "linked.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;
using detail::parse_link_url;

namespace {

struct two {
  listener door;
  byte_stream near, far;
};

awaitable<std::unique_ptr<two>> streams() {
  const auto ex = co_await asio::this_coro::executor;
  auto t = std::make_unique<two>();
  t->door = detail::listen_streams(ex, parse_link_url("ucx://localhost:0").value()).value();
  const auto at = "ucx://" + t->door.local_endpoint().to_string();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> { t->far = co_await t->door.async_accept(); });
    t->near = (co_await detail::connect_stream(parse_link_url(at).value())).value();
  });
  CHECK(!v.error());
  co_return t;
}

asio::mutable_buffer all_of(const buffer& b) { return asio::buffer(b.data(), b.size()); }

}  // namespace

TEST_CASE("ucx streams: what is written is read, whatever the sizes of writes and reads") {
  for (auto write : std::vector<std::size_t>{1, 16'383, 16'384, 70'001, 3'000'000})
    for (auto read : std::vector<std::size_t>{3'000, 16'384, 100'003, 5'000'000}) {
      CAPTURE(write);
      CAPTURE(read);
      run_body([](std::size_t write, std::size_t read) -> awaitable<void> {
        auto t = co_await streams();
        const std::size_t bytes = write == 1 ? 3000 : 6'000'000;
        const auto data = patterned(bytes);
        auto back = blank(bytes);
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> {
            for (std::size_t at = 0; at < bytes; at += write)
              co_await asio::async_write(t->near, all_of(data.slice(at, std::min(write, bytes - at))), asio::deferred);
            t->near.shutdown_send();
          });
          for (std::size_t at = 0; at < bytes;)
            at += co_await t->far.async_read_some(all_of(back.slice(at, std::min(read, bytes - at))), asio::deferred);
        });
        CHECK(!v.error());
        CHECK(same(data, back));
        char more;
        CHECK((co_await t->far.async_read_some(asio::buffer(&more, 1), as_result)).error() == asio::error::eof);
        // The other way is still open.
        CHECK((co_await t->far.async_write_some(asio::buffer("x", 1), as_result)).value() == 1);
        CHECK((co_await t->near.async_read_some(asio::buffer(&more, 1), as_result)).value() == 1);
        CHECK((co_await t->near.async_write_some(asio::buffer("x", 1), as_result)).error() == asio::error::broken_pipe);
      }(write, read));
    }
}

TEST_CASE("ucx streams: a writer whose peer doesn't read waits, whatever it writes") {
  for (auto size : std::vector<std::size_t>{1'000, 100'000})
    run_body([](std::size_t size) -> awaitable<void> {
      auto t = co_await streams();
      const auto owner = std::make_shared<buffer>(patterned(size));
      std::size_t taken = 0;
      for (;; taken += size) {
        CHECK(t->near.keeps());
        t->near.keep(owner);
        if (!co_await with_deadline(t->near.async_write_some(all_of(*owner)), 200ms)) break;
        REQUIRE(taken < (16 << 20));
      }
      CHECK(taken > 100'000);
      // All that was taken comes.
      auto back = blank(size);
      for (std::size_t at = 0; at < taken; at += size) {
        co_await asio::async_read(t->far, all_of(back), asio::deferred);
        CHECK(same(back, *owner));
      }
    }(size));
}

TEST_CASE("ucx streams: a read that is cancelled took nothing, and its memory is left alone") {
  run_body([]() -> awaitable<void> {
    auto t = co_await streams();
    auto back = blank(100'000), other = blank(100'000);
    const auto data = patterned(100'000);
    CHECK(!co_await with_deadline(t->far.async_read_some(all_of(other)), 20ms));
    CHECK((co_await t->near.async_write_some(asio::buffer("x", 1), as_result)).has_value());
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> { co_await asio::async_write(t->near, all_of(data), asio::deferred); });
      char first;
      co_await asio::async_read(t->far, asio::buffer(&first, 1), asio::deferred);
      co_await asio::async_read(t->far, all_of(back), asio::deferred);
    });
    CHECK(!v.error());
    CHECK(same(back, data));
    CHECK(same(other, blank(100'000)));
  }());
}

TEST_CASE("ucx streams: closing aborts what is pending here, and is the end or a reset there") {
  run_body([]() -> awaitable<void> {
    auto t = co_await streams();
    char byte;
    error_code ended;
    bool called = false;
    t->near.async_read_some(asio::buffer(&byte, 1), [&](error_code ec, std::size_t) { ended = ec, called = true; });
    t->near.close();
    CHECK(!t->near.is_open());
    CHECK((co_await t->far.async_read_some(asio::buffer(&byte, 1), as_result)).error() == asio::error::eof);
    CHECK(called);
    CHECK(ended == asio::error::operation_aborted);
    CHECK((co_await t->near.async_read_some(asio::buffer(&byte, 1), as_result)).error() == asio::error::bad_descriptor);
    // Whoever goes on writing to nobody is told.
    const auto data = patterned(1 << 20);
    error_code failed;
    while (!failed) failed = (co_await t->far.async_write_some(all_of(data), as_result)).error();
    CHECK(failed == asio::error::connection_reset);
  }());
}

TEST_CASE("ucx streams: closed when the peer's end has been read, nothing lingers") {
  asio::io_context context(1);
  bool ended = false;
  auto body = []() -> awaitable<void> {
    auto t = co_await streams();
    t->near.shutdown_send();
    char more;
    CHECK((co_await t->far.async_read_some(asio::buffer(&more, 1), as_result)).error() == asio::error::eof);
  };
  asio::co_spawn(context, body(), [&](std::exception_ptr) { ended = true; });
  for (int i = 0; i < 1'000'000 && !ended; ++i) context.poll(), context.restart();
  REQUIRE(ended);
  context.run_for(1900ms);  // what waits for the peer waits for 2 s
  CHECK(context.stopped());
}

// Streams between processes of one machine: paths, and descriptors that travel with bytes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <filesystem>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/passed_descriptors.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "support/co_test.hpp"
#include "support/lingering.hpp"
#include "support/quiet_contract.hpp"

using namespace cokv;
using namespace std::chrono_literals;
using test::co_test;

namespace {

endpoint fresh_place() {
  static int n = 0;
  const auto name = "cokv-test-" + std::to_string(::getpid()) + "-" + std::to_string(n++);
  return endpoint::local((std::filesystem::temp_directory_path() / name).string());
}

struct pair_of_streams {
  byte_stream client, server;
};

awaitable<pair_of_streams> connected(asio::any_io_executor ex) {
  auto& net = network::of(ex);
  auto door = net.listen(fresh_place()).value();
  auto [order, ec1, client, ec2, server] =
      co_await asio::experimental::make_parallel_group(net.async_connect(door.local_endpoint()), door.async_accept())
          .async_wait(asio::experimental::wait_for_all(), asio::deferred);
  REQUIRE(!ec1);
  REQUIRE(!ec2);
  co_return pair_of_streams{std::move(client), std::move(server)};
}

}  // namespace

TEST_CASE("local streams: a path is named, connected to, and gone when its listener is") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    CHECK(client.peer().starts_with("unix:"));
    CHECK(client.carries_descriptors());
    std::vector<std::byte> sent(1 << 20), got(1 << 20);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7);
    auto [order, e1, n1, e2, n2] =
        co_await asio::experimental::make_parallel_group(asio::async_write(client, asio::buffer(sent), asio::deferred),
                                                         asio::async_read(server, asio::buffer(got), asio::deferred))
            .async_wait(asio::experimental::wait_for_all(), asio::deferred);
    CHECK((!e1 && !e2));
    CHECK(got == sent);
    auto [ec, none] = co_await network::of(ex).async_connect(fresh_place(), asio::as_tuple(asio::deferred));
    CHECK(ec == asio::error::connection_refused);
    client.close();
    char byte;
    auto [end, n] = co_await server.async_read_some(asio::buffer(&byte, 1), asio::as_tuple(asio::deferred));
    CHECK(end == asio::error::eof);
  });
}

TEST_CASE("local streams: one is quiet until bytes or an end have come") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    co_await test::quiet_contract(client, server);
  });
}

TEST_CASE("local streams: the file is its user's alone, an abandoned one is taken over, one in use is not") {
  asio::io_context context;
  auto& net = network::of(context.get_executor());
  const auto at = fresh_place();
  {
    auto door = net.listen(at).value();
    struct stat there{};
    REQUIRE(::stat(at.path().c_str(), &there) == 0);
    CHECK((there.st_mode & 0777) == 0600);
    auto second = net.listen(at);
    REQUIRE(!second);
    CHECK(second.error() == asio::error::address_in_use);
  }
  CHECK(!std::filesystem::exists(at.path()));
  {  // whoever listened here was killed
    asio::local::stream_protocol::acceptor dead(context, at.path());
  }
  REQUIRE(std::filesystem::exists(at.path()));
  CHECK(net.listen(at).has_value());
  CHECK(net.listen(endpoint::local("")).error() == asio::error::invalid_argument);
  CHECK(net.listen(endpoint::local(std::string(200, 'x'))).error() == asio::error::name_too_long);
  // A file that is no socket is nobody's to remove.
  const auto file = fresh_place();
  ::close(::open(file.path().c_str(), O_CREAT | O_WRONLY, 0600));
  CHECK(!net.listen(file).has_value());
  CHECK(std::filesystem::exists(file.path()));
  std::filesystem::remove(file.path());
}

TEST_CASE("local streams: memory is passed, and what one side writes the other reads") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    auto memory = allocate_shared(100'000).value();
    const auto handle = export_shared(memory.slice(4096, 1000)).value();
    client.attach(handle.file);
    co_await asio::async_write(client, asio::buffer("m", 1), asio::deferred);
    CHECK(!server.take_attached());
    char byte;
    co_await asio::async_read(server, asio::buffer(&byte, 1), asio::deferred);
    const auto file = server.take_attached();
    REQUIRE(file);
    CHECK(!server.take_attached());
    memory_handle passed;
    passed.file = file;
    auto mapped = import_shared(passed);
    REQUIRE(mapped.has_value());
    CHECK(mapped->size() >= memory.size());
    memory.bytes()[4100] = std::byte{42};
    CHECK(mapped->bytes()[4100] == std::byte{42});
    mapped->bytes()[4101] = std::byte{43};
    CHECK(memory.bytes()[4101] == std::byte{43});
  });
}

TEST_CASE("local streams: descriptors keep their order, however many, and come no later than their bytes") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto [client, server] = co_await connected(ex);
    std::vector<buffer> memory;
    for (std::size_t i = 0; i < 50; ++i) {
      memory.push_back(allocate_shared(4096 + i).value());
      client.attach(export_shared(memory.back())->file);
    }
    // The first byte, when there are so many, may be behind a few others: the rest is there with the last.
    co_await asio::async_write(client, asio::buffer("0123456789", 10), asio::deferred);
    char bytes[10];
    co_await asio::async_read(server, asio::buffer(bytes), asio::deferred);
    for (std::size_t i = 0; i < 50; ++i) {
      memory_handle h;
      h.file = server.take_attached();
      REQUIRE(h.file);
      CHECK(import_shared(h)->size() == 4096 + i);
    }
    CHECK(!server.take_attached());
  });
}

TEST_CASE("local streams: what is not sealed shared memory is not mapped") {
  memory_handle h;
  CHECK(import_shared(h).error() == errc::invalid_argument);
  h.file = std::shared_ptr<const int>(new int(::open("/dev/null", O_RDWR | O_CLOEXEC)), [](const int* fd) {
    ::close(*fd);
    delete fd;
  });
  CHECK(import_shared(h).error() == errc::invalid_argument);
  h.file = std::shared_ptr<const int>(new int(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING)), [](const int* fd) {
    ::close(*fd);
    delete fd;
  });
  CHECK(import_shared(h).error() == errc::invalid_argument);  // it could shrink under us
  CHECK(export_shared(buffer::host(4096)).error() == errc::unsupported);
}

TEST_CASE(
    "local streams: what a peer passed is counted, and closed without waiting for it, whether it was read or not") {
  test::run_real([](asio::any_io_executor ex) -> awaitable<void> {
    const auto before = detail::passed_descriptors();
    for (const bool read : {true, false}) {
      CAPTURE(read);
      auto [client, server] = co_await connected(ex);
      test::lingering slow;
      client.attach(std::move(slow.end));
      co_await asio::async_write(client, asio::buffer("m", 1), asio::deferred);
      char byte;
      if (read) {
        co_await asio::async_read(server, asio::buffer(&byte, 1), asio::deferred);
        auto came = server.take_attached();
        REQUIRE(came);
        CHECK(detail::passed_descriptors() == before + 1);
        came.reset();
      } else {
        server.close();
        CHECK(!server.is_open());
        auto [end, n] = co_await client.async_read_some(asio::buffer(&byte, 1), asio::as_tuple(asio::deferred));
        CHECK(end);
      }
      CHECK(detail::passed_descriptors() == before + 1);  // it is not closed yet, and nobody waits for it
      slow.release();
      while (detail::passed_descriptors() != before) co_await clock::of(ex).async_wait_for(1ms);
    }
    // What was mapped does not count, however long it is.
    auto [client, server] = co_await connected(ex);
    client.attach(export_shared(allocate_shared(4096).value())->file);
    co_await asio::async_write(client, asio::buffer("m", 1), asio::deferred);
    char byte;
    co_await asio::async_read(server, asio::buffer(&byte, 1), asio::deferred);
    memory_handle passed;
    passed.file = server.take_attached();
    const auto mapped = import_shared(passed);
    CHECK(mapped.has_value());
    passed = {};
    while (detail::passed_descriptors() != before) co_await clock::of(ex).async_wait_for(1ms);
    CHECK(export_shared(*mapped).has_value());
  });
}

TEST_CASE("local streams: reads, writes and connects are cancelled with every type, and destroyed while they wait") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    for (auto type :
         {asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total}) {
      auto [client, server] = co_await connected(ex);
      asio::cancellation_signal reading, writing;
      error_code read_ec, write_ec;
      char byte;
      std::vector<std::byte> much(64 << 20);
      server.async_read_some(
          asio::buffer(&byte, 1),
          asio::bind_cancellation_slot(reading.slot(), [&](error_code ec, std::size_t) { read_ec = ec; }));
      co_await clock::of(ex).async_wait_for(1ms);
      reading.emit(type);
      co_await clock::of(ex).async_wait_for(1ms);
      CHECK(read_ec == asio::error::operation_aborted);
      // The writer stands still when nobody reads.
      bool stuck = false;
      while (!stuck) {
        stuck = true;
        client.async_write_some(asio::buffer(much),
                                asio::bind_cancellation_slot(writing.slot(), [&](error_code ec, std::size_t) {
                                  write_ec = ec;
                                  stuck = false;
                                }));
        co_await clock::of(ex).async_wait_for(10ms);
      }
      CHECK(!write_ec);
      writing.emit(type);
      co_await clock::of(ex).async_wait_for(1ms);
      CHECK(write_ec == asio::error::operation_aborted);
      co_await server.async_read_some(asio::buffer(&byte, 1));  // the stream is as good as before
    }
    auto [client, server] = co_await connected(ex);
    error_code ended;
    char byte;
    server.async_read_some(asio::buffer(&byte, 1), [&](error_code ec, std::size_t) { ended = ec; });
    co_await clock::of(ex).async_wait_for(1ms);
    server = {};
    co_await clock::of(ex).async_wait_for(1ms);
    CHECK(ended == asio::error::operation_aborted);
  });
}

TEST_CASE("local streams: in simulation only the death of a process parts the two ends") {
  for (auto seed : test::seeds(20)) {
    sim_context context(seed);
    auto& net = sim::net::of(context);
    net.faults.reset = net.faults.flip = net.faults.refuse = 0.5;
    sim::node other(context, "other");
    const auto at = endpoint::local("/run/other");
    auto door = network::of(other.get_executor()).listen(at).value();
    bool ended = false;
    asio::co_spawn(
        other.get_executor(),
        [&]() -> awaitable<void> {
          auto stream = co_await door.async_accept();
          std::vector<std::byte> some(4096);
          for (;;) co_await stream.async_write_some(asio::buffer(some));
        },
        asio::detached);
    asio::co_spawn(
        context.get_executor(),
        [&]() -> awaitable<void> {
          auto stream = co_await network::of(context.get_executor()).async_connect(at);
          net.isolate("other");
          net.reset_connections("other");
          std::vector<std::byte> got(1 << 18);
          co_await asio::async_read(stream, asio::buffer(got), asio::deferred);
          CHECK(std::ranges::count(got, std::byte{0}) == 1 << 18);
          other.kill();
          error_code ec;
          while (!ec)
            ec = std::get<0>(co_await stream.async_read_some(asio::buffer(got), asio::as_tuple(asio::deferred)));
          CHECK((ec == asio::error::eof || ec == asio::error::connection_reset));
          ended = true;
        },
        [](std::exception_ptr e) {
          if (e) std::rethrow_exception(e);
        });
    context.run();
    CHECK(ended);
  }
}

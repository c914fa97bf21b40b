// Files past the system's cache: aligned or refused, whole or said why.
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/file.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "support/co_test.hpp"

using namespace cokv;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);
namespace e = boost::system::errc;

// A folder that goes with the test: on a disk that takes direct files, or there is nothing to test but simulated ones.
struct folder {
  std::string path = (std::filesystem::current_path() / ("cokv_direct_" + std::to_string(::getpid()))).string();
  ~folder() { std::filesystem::remove_all(path); }
};

void co_test(const test::co_body& body, bool simulated = true) {
  if (simulated) test::co_test(body, {.real = false});
  for (const char* ring : {"1", "0"}) {
    folder here;
    std::filesystem::create_directories(here.path);
    ::setenv("COKV_IO_URING", ring, 1);
    test::run_real([&](asio::any_io_executor ex) -> awaitable<void> {
      auto [ec, f] = co_await file_system::of(ex).async_open_direct(here.path + "/probe", open_mode::create, tuple);
      if (ec == e::invalid_argument) {
        MESSAGE("no direct files on the disk of the working directory: only simulated ones were tested");
        co_return;
      }
      co_await body(ex);
    });
    ::unsetenv("COKV_IO_URING");
  }
}

awaitable<std::string> scratch(asio::any_io_executor ex) {
  const auto path = folder().path;
  co_await file_system::of(ex).async_make_directories(path);
  co_return path + "/f";
}

buffer pattern(std::size_t n) {
  auto out = buffer::host(n);
  for (std::size_t i = 0; i < n; ++i) out.data()[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  return out;
}

asio::mutable_buffer bytes_of(const buffer& b) { return {b.data(), b.size()}; }

}  // namespace

TEST_CASE("a direct file takes aligned transfers of any length, whole") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    const auto path = co_await scratch(ex);
    auto f = co_await fs.async_open_direct(path, open_mode::create);
    CHECK(f.alignment().offset > 1);
    CHECK(4096 % f.alignment().offset == 0);
    CHECK(4096 % f.alignment().memory == 0);
    const auto data = pattern(3 << 20);
    CHECK(co_await f.async_write_at(4096, bytes_of(data)) == data.size());
    const auto got = buffer::host(data.size());
    CHECK(co_await f.async_read_at(4096, bytes_of(got)) == got.size());
    CHECK(std::memcmp(data.data(), got.data(), got.size()) == 0);
    co_await f.async_sync();
    CHECK(f.size().value() == 4096 + data.size());
    f = co_await fs.async_open(path, open_mode::read);
    CHECK(f.alignment().offset == 1);
    std::memset(got.data(), 0, got.size());
    CHECK(co_await f.async_read_at(4096, bytes_of(got)) == got.size());
    CHECK(std::memcmp(data.data(), got.data(), got.size()) == 0);
  });
}

TEST_CASE("a direct file takes several aligned pieces of memory in one call, and refuses one that is not") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto f = co_await file_system::of(ex).async_open_direct(co_await scratch(ex), open_mode::create);
    constexpr std::size_t pieces = 100, each = 8192;
    const auto data = pattern(pieces * each), got = buffer::host(pieces * each, 4096);
    std::vector<asio::const_buffer> from;
    std::vector<asio::mutable_buffer> into;
    for (std::size_t i = 0; i < pieces; ++i) {
      const auto at = (i * 37 % pieces) * each;  // in an order of their own
      from.emplace_back(data.data() + at, each);
      into.emplace_back(got.data() + at, each);
    }
    CHECK(co_await f.async_write_at(4096, from) == data.size());
    CHECK(co_await f.async_read_at(4096, into) == data.size());
    CHECK(std::memcmp(data.data(), got.data(), got.size()) == 0);
    from[3] = asio::const_buffer(data.data(), each - 512 / 2);
    auto [ec, n] = co_await f.async_write_at(4096, from, tuple);
    CHECK(ec == e::invalid_argument);
  });
}

TEST_CASE("a direct read beyond the end of a file is short, wherever that is") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    const auto path = co_await scratch(ex);
    const auto data = pattern(5000), got = buffer::host(1 << 14);
    auto cached = co_await fs.async_open(path, open_mode::create);
    co_await cached.async_write_at(0, bytes_of(data));
    co_await cached.async_sync();
    auto f = co_await fs.async_open_direct(path, open_mode::read);
    for (auto [at, n] : {std::pair(0, 5000), std::pair(4096, 904), std::pair(8192, 0)}) {
      const auto [ec, came] = co_await f.async_read_at(static_cast<std::uint64_t>(at), bytes_of(got), tuple);
      CHECK(!ec);
      CHECK(came == static_cast<std::size_t>(n));
      CHECK(std::memcmp(data.data() + std::min(at, 5000), got.data(), came) == 0);
    }
  });
}

TEST_CASE("a direct operation off the alignment is refused, and touches nothing") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto f = co_await file_system::of(ex).async_open_direct(co_await scratch(ex), open_mode::create);
    const auto data = pattern(8192);
    co_await f.async_write_at(0, bytes_of(data));
    const auto off = f.alignment().offset / 2;
    const auto bad = [&](std::uint64_t at, const buffer& memory) -> awaitable<void> {
      auto [read_ec, came] = co_await f.async_read_at(at, bytes_of(memory), tuple);
      CHECK(read_ec == e::invalid_argument);
      auto [write_ec, went] = co_await f.async_write_at(at, bytes_of(memory), tuple);
      CHECK(write_ec == e::invalid_argument);
      CHECK(came + went == 0);
    };
    co_await bad(off, data.slice(0, 4096));
    co_await bad(0, data.slice(0, 4096 + off));
    if (f.alignment().memory > 1) co_await bad(0, data.slice(f.alignment().memory / 2, 4096));
    CHECK(f.size().value() == 8192);
  });
}

TEST_CASE("where there are no direct files, opening one is invalid_argument") {
  test::co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& disk = sim::disk::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)));
        disk.faults.direct.offset = 0;
        auto [ec, f] = co_await file_system::of(ex).async_open_direct("f", open_mode::create, tuple);
        CHECK(ec == e::invalid_argument);
        CHECK(!f.is_open());
      },
      {.real = false});
  test::run_real([](asio::any_io_executor ex) -> awaitable<void> {
    auto [ec, f] = co_await file_system::of(ex).async_open_direct("/proc/self/status", open_mode::read, tuple);
    CHECK(ec == e::invalid_argument);
    CHECK(!f.is_open());
  });
}

TEST_CASE("a write that the system cuts short says why, and how far it came") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& fs = file_system::of(ex);
        const auto path = co_await scratch(ex);
        const auto data = pattern(1 << 16);
        for (bool direct : {false, true}) {
          auto f = direct ? co_await fs.async_open_direct(path, open_mode::create)
                          : co_await fs.async_open(path, open_mode::create);
          rlimit before{};
          ::getrlimit(RLIMIT_FSIZE, &before);
          auto* handler = std::signal(SIGXFSZ, SIG_IGN);
          const rlimit small{3 * 4096, before.rlim_max};
          ::setrlimit(RLIMIT_FSIZE, &small);
          auto [ec, n] = co_await f.async_write_at(0, bytes_of(data), tuple);
          ::setrlimit(RLIMIT_FSIZE, &before);
          std::signal(SIGXFSZ, handler);
          CHECK(ec == e::file_too_large);
          CHECK(n == 3 * 4096);
        }
        auto full = co_await fs.async_open("/dev/full", open_mode::write);
        auto [ec, n] = co_await full.async_write_at(0, bytes_of(data), tuple);
        CHECK(ec == e::no_space_on_device);
        CHECK(n == 0);
      },
      false);
}

TEST_CASE("a cancelled direct transfer either never began or completes with what it did") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto f = co_await file_system::of(ex).async_open_direct(co_await scratch(ex), open_mode::create);
    const auto data = pattern(1 << 20);
    co_await f.async_write_at(0, bytes_of(data));
    for (auto type :
         {asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total})
      for (int i = 0; i < 5; ++i) {
        const auto got = buffer::host(data.size());
        asio::cancellation_signal signal;
        bool over = false;
        error_code ec;
        f.async_read_at(0, bytes_of(got),
                        asio::bind_cancellation_slot(signal.slot(), [&](error_code why, std::size_t n) {
                          ec = why;
                          over = true;
                          CHECK((why || n == data.size()));
                        }));
        signal.emit(type);
        CHECK(!over);
        while (!over) co_await clock::of(ex).async_wait_for(std::chrono::microseconds(10));
        if (ec) CHECK(ec == asio::error::operation_aborted);
        if (!ec) CHECK(std::memcmp(data.data(), got.data(), data.size()) == 0);
      }
  });
}

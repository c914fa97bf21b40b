#include "cokv/runtime/file.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "support/co_test.hpp"
#include "support/counting_allocator.hpp"

using namespace cokv;
using namespace std::chrono_literals;

namespace {

// A directory of its own for each run: real ones are emptied, simulated ones begin empty.
awaitable<std::string> scratch(asio::any_io_executor ex) {
  static int count = 0;
  std::string path = (std::filesystem::temp_directory_path() /
                      ("cokv_file_test_" + std::to_string(::getpid()) + "_" + std::to_string(++count)))
                         .string();
  std::filesystem::remove_all(path);
  co_await file_system::of(ex).async_make_directories(path + "/a/b");
  co_return path;
}

// With io_uring where it works, with the pool of threads, and simulated.
void co_test(const test::co_body& body) {
  test::co_test(body);
  ::setenv("COKV_IO_URING", "0", 1);
  test::run_real(body);
  ::unsetenv("COKV_IO_URING");
}

struct cleanup {
  ~cleanup() {
    for (const auto& e : std::filesystem::directory_iterator(std::filesystem::temp_directory_path()))
      if (e.path().filename().string().starts_with("cokv_file_test_" + std::to_string(::getpid()) + "_"))
        std::filesystem::remove_all(e.path());
  }
};

// Not every file system does.
bool system_tells_what_it_has() {
  auto* f = std::tmpfile();
  std::byte b{1};
  const iovec part{&b, 1};
  REQUIRE(f);
  const bool does = ::pwrite(::fileno(f), &b, 1, 0) == 1 && ::preadv2(::fileno(f), &part, 1, 0, RWF_NOWAIT) == 1;
  std::fclose(f);
  if (!does) MESSAGE("the file system of temporary files has no reads that do not wait");
  return does;
}

std::vector<std::byte> pattern(std::size_t n, unsigned seed = 1) {
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>((seed = seed * 1103515245 + 12345) >> 16);
  return bytes;
}

}  // namespace

TEST_CASE("what is written is read, whole, from any offset") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    auto dir = co_await scratch(ex);
    auto f = co_await fs.async_open(dir + "/f", open_mode::create);
    auto data = pattern(300'000);
    CHECK(co_await f.async_write_at(0, asio::buffer(data)) == data.size());
    CHECK(f.size().value() == data.size());
    std::vector<std::byte> got(1000);
    CHECK(co_await f.async_read_at(777, asio::buffer(got)) == 1000);
    CHECK(std::equal(got.begin(), got.end(), data.begin() + 777));
    co_await f.async_sync();
    f.close();
    CHECK(!f.is_open());
    f = co_await fs.async_open(dir + "/f", open_mode::read);
    got.resize(data.size());
    CHECK(co_await f.async_read_at(0, asio::buffer(got)) == data.size());
    CHECK(got == data);
  });
}

TEST_CASE("several pieces of memory go in one call, as if they were one") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    auto f = co_await fs.async_open(co_await scratch(ex) + "/f", open_mode::create);
    // As many as no single call of the system takes, of odd sizes, small in all and large.
    for (std::size_t count : {1, 3, 600, 2000})
      for (std::size_t each : {1, 13, 997}) {
        const auto data = pattern(count * each, static_cast<unsigned>(count + each));
        std::vector<asio::const_buffer> from;
        for (std::size_t i = 0; i < count; ++i) from.push_back(asio::buffer(data.data() + i * each, each));
        CHECK(co_await f.async_write_at(77, from) == data.size());
        std::vector<std::byte> got(data.size());
        CHECK(co_await f.async_read_at(77, asio::buffer(got)) == got.size());
        CHECK(got == data);
        std::vector<std::byte> parts(data.size());
        std::vector<asio::mutable_buffer> into;
        for (std::size_t i = 0; i < count; ++i) into.push_back(asio::buffer(parts.data() + i * each, each));
        CHECK(co_await f.async_read_at(77, into) == parts.size());
        CHECK(parts == data);
      }
    // The file ends within one of them.
    const auto size = f.size().value();
    std::vector<std::byte> a(100), b(100), c(100);
    CHECK(co_await f.async_read_at(size - 150, std::vector{asio::buffer(a), asio::buffer(b), asio::buffer(c)}) == 150);
    auto [ec, n] =
        co_await f.async_read_at(size, std::vector{asio::buffer(a), asio::buffer(b)}, asio::as_tuple(asio::deferred));
    CHECK(!ec);
    CHECK(n == 0);
  });
}

TEST_CASE("a short read means end of file, and a write beyond the end leaves zeros") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    auto dir = co_await scratch(ex);
    auto f = co_await fs.async_open(dir + "/f", open_mode::create);
    co_await f.async_write_at(10, asio::buffer("abc", 3));
    char got[20];
    auto [ec, n] = co_await f.async_read_at(0, asio::buffer(got), asio::as_tuple(asio::deferred));
    CHECK(!ec);
    CHECK(n == 13);
    CHECK(std::string_view(got, 13) == std::string_view("\0\0\0\0\0\0\0\0\0\0abc", 13));
    std::tie(ec, n) = co_await f.async_read_at(100, asio::buffer(got), asio::as_tuple(asio::deferred));
    CHECK(!ec);
    CHECK(n == 0);
    CHECK(co_await f.async_read_at(0, asio::mutable_buffer()) == 0);
  });
}

TEST_CASE("open modes say what must be there") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    auto dir = co_await scratch(ex);
    auto failure = [&](std::string path, open_mode mode) -> awaitable<error_code> {
      auto [ec, f] = co_await fs.async_open(std::move(path), mode, asio::as_tuple(asio::deferred));
      CHECK(f.is_open() == !ec);
      co_return ec;
    };
    namespace e = boost::system::errc;
    CHECK(co_await failure(dir + "/none", open_mode::read) == e::no_such_file_or_directory);
    CHECK(co_await failure(dir + "/none", open_mode::write) == e::no_such_file_or_directory);
    CHECK(co_await failure(dir + "/none/f", open_mode::create) == e::no_such_file_or_directory);
    CHECK(!co_await failure(dir + "/f", open_mode::create_new));
    CHECK(co_await failure(dir + "/f", open_mode::create_new) == e::file_exists);
    auto f = co_await fs.async_open(dir + "/f", open_mode::write);
    co_await f.async_write_at(0, asio::buffer("abc", 3));
    f = co_await fs.async_open(dir + "/f", open_mode::create);
    CHECK(f.size().value() == 0);
    f = co_await fs.async_open(dir + "/f", open_mode::read);
    auto [ec, n] = co_await f.async_write_at(0, asio::buffer("abc", 3), asio::as_tuple(asio::deferred));
    CHECK(ec);
  });
}

TEST_CASE("names are listed in order, renamed over each other, and removed") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    auto dir = co_await scratch(ex);
    for (const char* name : {"/z", "/m", "/k"}) {
      auto f = co_await fs.async_open(dir + name, open_mode::create);
      co_await f.async_write_at(0, asio::buffer(name, 2));
    }
    co_await fs.async_rename(dir + "/z", dir + "/k");
    auto entries = co_await fs.async_list(dir);
    REQUIRE(entries.size() == 3);
    CHECK(entries[0].name == "a");
    CHECK(entries[0].directory);
    CHECK(entries[1].name == "k");
    CHECK(!entries[1].directory);
    CHECK(entries[1].size == 2);
    CHECK(entries[2].name == "m");
    auto f = co_await fs.async_open(dir + "/k", open_mode::read);
    char got[2];
    co_await f.async_read_at(0, asio::buffer(got));
    CHECK(std::string_view(got, 2) == "/z");
    co_await fs.async_remove(dir + "/k");
    CHECK(co_await f.async_read_at(0, asio::buffer(got)) == 2);  // open files outlive their names
    co_await fs.async_sync_directory(dir);
    CHECK((co_await fs.async_list(dir)).size() == 2);
    CHECK(fs.free_space(dir).value() > 0);

    namespace e = boost::system::errc;
    auto [ec] = co_await fs.async_remove(dir + "/k", asio::as_tuple(asio::deferred));
    CHECK(ec == e::no_such_file_or_directory);
    std::tie(ec) = co_await fs.async_rename(dir + "/k", dir + "/l", asio::as_tuple(asio::deferred));
    CHECK(ec == e::no_such_file_or_directory);
    std::tie(ec) = co_await fs.async_remove(dir + "/a", asio::as_tuple(asio::deferred));
    CHECK(ec == e::directory_not_empty);
    auto [ec2, list] = co_await fs.async_list(dir + "/none", asio::as_tuple(asio::deferred));
    CHECK(ec2 == e::no_such_file_or_directory);
    co_await fs.async_remove(dir + "/a/b");
  });
}

TEST_CASE("many operations at once on one file") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    auto dir = co_await scratch(ex);
    auto f = co_await fs.async_open(dir + "/f", open_mode::create);
    auto data = pattern(64 * 1024);
    using operation = decltype(f.async_write_at(0, asio::const_buffer()));
    std::vector<operation> writes;
    for (std::size_t i = 0; i < 64; ++i)
      writes.push_back(f.async_write_at(i * 1024, asio::const_buffer(data.data() + i * 1024, 1024)));
    auto [order, ecs, ns] = co_await asio::experimental::make_parallel_group(std::move(writes))
                                .async_wait(asio::experimental::wait_for_all(), asio::deferred);
    for (auto ec : ecs) CHECK(!ec);
    std::vector<std::byte> got(data.size());
    CHECK(co_await f.async_read_at(0, asio::buffer(got)) == data.size());
    CHECK(got == data);
  });
}

TEST_CASE("a cancelled transfer either never began or completes with what it did") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    auto dir = co_await scratch(ex);
    auto f = co_await fs.async_open(dir + "/f", open_mode::create);
    auto data = pattern(100'000);
    co_await f.async_write_at(0, asio::buffer(data));
    for (auto type :
         {asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total})
      for (int i = 0; i < 10; ++i) {
        std::vector<std::byte> got(data.size());
        asio::cancellation_signal signal;
        bool over = false;
        error_code ec;
        std::size_t n = 0;
        f.async_read_at(0, asio::buffer(got),
                        asio::bind_cancellation_slot(
                            signal.slot(), [&](error_code e, std::size_t done) { ec = e, n = done, over = true; }));
        signal.emit(type);
        CHECK(!over);
        while (!over) co_await clock::of(ex).async_wait_for(10us);
        if (!ec) {
          CHECK(n == data.size());
          CHECK(got == data);
        } else {
          CHECK(ec == asio::error::operation_aborted);
        }
      }
  });
}

TEST_CASE("a handle may go while its operations are in flight") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    auto dir = co_await scratch(ex);
    auto f = co_await fs.async_open(dir + "/f", open_mode::create);
    auto data = pattern(100'000);
    bool over = false;
    std::size_t written = 0;
    f.async_write_at(0, asio::buffer(data), [&](error_code, std::size_t n) { written = n, over = true; });
    f.close();
    while (!over) co_await clock::of(ex).async_wait_for(10us);
    CHECK(written == data.size());
    f = co_await fs.async_open(dir + "/f", open_mode::read);
    CHECK(f.size().value() == data.size());
  });
}

TEST_CASE("operations on files use their handler's allocator") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto dir = co_await scratch(ex);
    auto f = co_await file_system::of(ex).async_open(dir + "/f", open_mode::create);
    test::allocation_count count;
    bool over = false;
    f.async_write_at(0, asio::buffer("x", 1),
                     asio::bind_allocator(test::counting_allocator<>(count), [&](error_code, std::size_t) {
                       CHECK(count.live == 0);
                       over = true;
                     }));
    CHECK(count.total > 0);
    while (!over) co_await clock::of(ex).async_wait_for(10us);
  });
}

TEST_CASE("a context that goes with file operations pending waits for what touches memory") {
  cleanup after;
  for (int polls = 0; polls < 20; ++polls) {
    auto data = std::make_shared<std::vector<std::byte>>(polls % 2 == 0 ? 1 << 20 : 100);
    {
      asio::io_context context(1);
      auto body = [](asio::any_io_executor ex, std::shared_ptr<std::vector<std::byte>> data) -> awaitable<void> {
        auto dir = co_await scratch(ex);
        auto f = co_await file_system::of(ex).async_open(dir + "/f", open_mode::create);
        for (;;) co_await f.async_write_at(0, asio::buffer(*data));
      };
      for (int i = 0; i < 4; ++i) asio::co_spawn(context, body(context.get_executor(), data), asio::detached);
      for (int i = 0; i < polls * 3; ++i) context.run_one();
    }
    CHECK(data.use_count() == 1);
  }
}

TEST_CASE("a locked file is held by one handle, until it is closed") {
  cleanup after;
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& fs = file_system::of(ex);
    auto dir = co_await scratch(ex);
    auto held = co_await fs.async_open(dir + "/lock", open_mode::lock);
    auto [ec, second] = co_await fs.async_open(dir + "/lock", open_mode::lock, asio::as_tuple(asio::deferred));
    CHECK(ec == errc::in_use);
    CHECK(!second.is_open());
    co_await fs.async_open(dir + "/other", open_mode::lock);
    held.close();
    held = co_await fs.async_open(dir + "/lock", open_mode::lock);
    CHECK(held.is_open());
  });
}

TEST_CASE("a small read of what the system has in memory takes no thread and no ring, and is there by the next turn") {
  cleanup after;
  if (!system_tells_what_it_has()) return;
  for (const char* ring : {"1", "0"}) {
    ::setenv("COKV_IO_URING", ring, 1);
    asio::io_context context(1);
    file f;
    auto data = pattern(64 << 10);
    asio::co_spawn(
        context,
        [&]() -> awaitable<void> {
          const auto ex = co_await asio::this_coro::executor;
          const auto dir = co_await scratch(ex);
          f = co_await file_system::of(ex).async_open(dir + "/f", open_mode::create);
          co_await f.async_write_at(0, asio::buffer(data));
        },
        asio::detached);
    context.run();
    context.restart();
    std::vector<std::byte> got(data.size());
    std::size_t read = 0;
    f.async_read_at(0, asio::buffer(got), [&](error_code ec, std::size_t n) { read = ec ? 0 : n; });
    CHECK(read == 0);  // never from within the call
    CHECK(context.poll_one() == 1);
    CHECK(read == data.size());
    CHECK(got == data);

    // What ends before the buffer does goes the long way, and is as short as it is.
    f.async_read_at(data.size() - 10, asio::buffer(got.data(), 20), [&](error_code ec, std::size_t n) {
      CHECK(!ec);
      read = n;
    });
    context.restart();
    context.run();
    CHECK(read == 10);
    f.close();
  }
  ::unsetenv("COKV_IO_URING");
}

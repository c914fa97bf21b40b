#include "cokv/runtime/readable_memory.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/result.hpp"
#include "shared_memory.hpp"
#include "support/co_test.hpp"
#include "unwaited.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::shared_ptr<const int> memfd(unsigned seals, std::size_t bytes) {
  const int fd = ::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  CHECK(::fcntl(fd, F_ADD_SEALS, seals) == 0);
  return memory_handle::of_descriptor(fd, 0, bytes).file;
}

bool mapped_at(const void* page) {
  unsigned char there = 0;
  return ::mincore(const_cast<void*>(page), 1, &there) == 0;
}

}  // namespace

TEST_CASE("readable memory: what its maker writes others read, and cannot write") {
  auto mine = readable_memory::make(100'000);
  REQUIRE(mine.has_value());
  CHECK(mine->memory.size() == 100'000);
  CHECK(mine->memory.data()[77] == std::byte{0});
  auto seen = readable_memory::map(mine->file);
  REQUIRE(seen.has_value());
  CHECK(seen->size() >= 100'000);
  mine->memory.data()[99'999] = std::byte{42};
  CHECK(seen->data()[99'999] == std::byte{42});
  // Not by another mapping, nor by making this one another, nor through the file, nor by its size.
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, *mine->file, 0) == MAP_FAILED);
  CHECK(::mprotect(seen->data(), 4096, PROT_READ | PROT_WRITE) != 0);
  CHECK(::pwrite(*mine->file, "x", 1, 0) < 0);
  CHECK(::ftruncate(*mine->file, 0) != 0);
  CHECK(::fcntl(*mine->file, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  mine->memory.data()[0] = std::byte{1};
  CHECK(seen->data()[0] == std::byte{1});
  // It lies there as long as anybody has it.
  mine = make_error_code(errc::closed);
  CHECK(seen->data()[99'999] == std::byte{42});
}

TEST_CASE("readable memory: much is unmapped on a thread that nobody waits for, little at once") {
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{64} << 20}) {
    CAPTURE(bytes);
    auto theirs = readable_memory::make(bytes).value();
    for (std::size_t i = 0; i < bytes; i += 4096) theirs.memory.data()[i] = std::byte{1};
    std::promise<std::thread::id> unmapped;
    auto seen = readable_memory::map(theirs.file, {new int, [&](const int* p) {
                                                     delete p;
                                                     unmapped.set_value(std::this_thread::get_id());
                                                   }});
    REQUIRE(seen.has_value());
    const auto* at = seen->data();
    CHECK(at[bytes - 1] == std::byte{0});
    CHECK(at[bytes - 4096] == std::byte{1});
    seen = make_error_code(errc::closed);
    auto who = unmapped.get_future();
    CHECK((who.get() == std::this_thread::get_id()) == (bytes <= 4 << 20));
    CHECK(!mapped_at(at));  // it is gone by then
  }
}

TEST_CASE("readable memory: what a peer shares for writing goes the same way, with its descriptor") {
  auto theirs = allocate_shared(64 << 20).value();
  auto handle = export_shared(theirs).value();
  auto mapped = detail::shared_mapping::map(handle).value();
  const auto* at = mapped->data();
  bool freed_here = false;
  mapped->before_unmap([&](void*, auto unmap) { freed_here = true, unmap(); });  // a device's, where it always was
  mapped.reset();
  CHECK(freed_here);
  std::promise<void> behind;  // in order: what was asked for before is done then
  detail::unwaited::unmapping().run([&] { behind.set_value(); });
  behind.get_future().wait();
  CHECK(!mapped_at(at));
}

TEST_CASE("unwaited: what stands still keeps nobody waiting, and memory is unmapped beside it") {
  std::promise<void> goes_on, over;
  detail::unwaited::closing().run([held = goes_on.get_future().share()] { held.wait(); });
  auto theirs = readable_memory::make(64 << 20).value();
  auto seen = readable_memory::map(theirs.file, {new int, [&](const int* p) {
                                                   delete p;
                                                   over.set_value();
                                                 }});
  REQUIRE(seen.has_value());
  seen = make_error_code(errc::closed);
  over.get_future().wait();
  std::promise<void> last;
  detail::unwaited::closing().run([&] { last.set_value(); });
  goes_on.set_value();
  last.get_future().wait();
}

TEST_CASE("readable memory: what may shrink under its reader is not mapped") {
  CHECK(readable_memory::map(nullptr).error() == errc::invalid_argument);
  CHECK(readable_memory::map(memfd(0, 4096)).error() == errc::invalid_argument);
  CHECK(readable_memory::map(memfd(F_SEAL_GROW, 4096)).error() == errc::invalid_argument);
  CHECK(readable_memory::map(memfd(F_SEAL_GROW | F_SEAL_SHRINK, 0)).error() == errc::invalid_argument);
  CHECK(readable_memory::map(memfd(F_SEAL_GROW | F_SEAL_SHRINK, 4096)).has_value());
  const auto null = memory_handle::of_descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC), 0, 0).file;
  CHECK(readable_memory::map(null).error() == errc::invalid_argument);
}

TEST_CASE("local streams: a connection that is detached ends with its descriptor") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& net = network::of(ex);
    static int count = 0;
    const auto at = endpoint::local("/tmp/cokv-detached-" + std::to_string(::getpid()) + "-" + std::to_string(++count));
    auto listening = net.listen(at).value();
    auto client = co_await net.async_connect(at, asio::use_awaitable);
    auto server = co_await listening.async_accept(asio::use_awaitable);
    co_await asio::async_write(server, asio::buffer("a", 1), asio::deferred);
    char byte = 0;
    co_await asio::async_read(client, asio::buffer(&byte, 1), asio::deferred);
    auto held = client.detach();
    REQUIRE(held);
    CHECK(!client.is_open());
    CHECK(!client.detach());
    client = byte_stream();
    co_await asio::async_write(server, asio::buffer("b", 1), asio::deferred);  // it is open, read or not
    bool gone = false;
    auto other = held;
    asio::co_spawn(
        ex,
        [&]() -> awaitable<void> {
          char end;
          auto [ec, n] = co_await server.async_read_some(asio::buffer(&end, 1), asio::as_tuple(asio::deferred));
          CHECK(ec);
          gone = true;
        },
        asio::detached);
    held.reset();
    for (int i = 0; i < 20; ++i) co_await asio::post(ex, asio::deferred);
    CHECK(!gone);
    other.reset();
    while (!gone) co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1));
  });
}

TEST_CASE(
    "reserved shared memory: its pages come when they are touched, whoever does, and go when they are given back") {
  constexpr std::size_t bytes = std::size_t{1} << 40, page = 4096;  // more than there is
  const auto mine = reserve_shared(bytes);
  REQUIRE(mine.has_value());
  CHECK((mine->kind() == memory_kind::shared && mine->size() == bytes && mine->host_accessible()));
  const auto handle = export_shared(mine->slice(8 * page, 4 * page));
  REQUIRE(handle.has_value());
  const auto all_of_it = import_shared(*handle);
  REQUIRE(all_of_it.has_value());
  const auto theirs = all_of_it->slice(8 * page, 4 * page);
  struct stat status{};
  const auto used = [&] {
    CHECK(::fstat(*handle->file, &status) == 0);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  CHECK(used() == 0);
  const auto part = mine->slice(8 * page, 4 * page);
  CHECK(part.bytes()[5] == std::byte{});
  std::ranges::fill(theirs.bytes(), std::byte{7});
  CHECK(part.bytes()[page] == std::byte{7});
  CHECK(used() == 4 * page);

  give_back(mine->slice(8 * page + 1, 3 * page));  // two whole pages
  CHECK(used() == 2 * page);
  CHECK(theirs.bytes()[1] == std::byte{7});
  CHECK(theirs.bytes()[page] == std::byte{});
  CHECK(part.bytes()[3 * page] == std::byte{7});
  give_back(mine->slice(9 * page, 100));
  give_back(buffer());
  give_back(*mine);
  CHECK(used() == 0);
  part.bytes()[0] = std::byte{1};
  CHECK(theirs.bytes()[0] == std::byte{1});
}

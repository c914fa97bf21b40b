// Workers on contexts of their own, each on a thread: links share nothing between contexts but what the system gives.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <thread>

#include "cokv/kvstream/gather.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t blocks = 64;
constexpr std::uint64_t rounds = 20;

geometry two_layers() {
  return geometry(16, {{0, 2, 2, {{"k", dtype::bf16, true, 32}, {"v", dtype::bf16, true, 32}}}});
}

slice everything(const geometry& g) {
  std::vector<std::uint32_t> table(blocks);
  for (std::uint32_t i = 0; i < blocks; ++i) table[i] = i * 7 % blocks;
  return slice(g, {0, 2}, std::move(table));
}

void must(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

// A window a round, which its visitor fills and reads back; lent where memory can be.
awaitable<void> offer(window_table& windows, peer_link link, bool shared) {
  const auto bytes = everything(two_layers()).bytes();
  auto memory = shared ? allocate_shared(bytes).value() : buffer::host(bytes);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    auto w = windows.expose({memory}, window_access::both).value();
    const auto ref = w.ref();
    link_message said(sizeof ref);
    std::memcpy(said.data(), &ref, sizeof ref);
    co_await link.async_send(std::move(said));
    co_await w.async_committed();
    const auto sum = co_await link.async_receive();  // and read back
    const auto digest = digest_of(memory.bytes());
    must(std::memcmp(sum.data(), &digest, sizeof digest) == 0, "what was committed is not what was put");
    co_await w.async_revoke();
  }
  link.close();
  (void)co_await link.async_closed(as_result);
}

// Packs on the device's threads what it puts, and unpacks what it gets.
awaitable<void> visit(peer_link link) {
  auto ex = co_await asio::this_coro::executor;
  const auto g = two_layers();
  const auto what = everything(g);
  auto d = any_device(ex);
  auto staging = staging_pool::make(d, 32 << 10, 4, memory_kind::host).value();
  packing through{staging, d.make_stream().value()};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    auto data = patterned(pool_bytes(g, blocks), round), back = blank(data.size());
    const auto said = co_await link.async_receive();
    window_ref ref;
    std::memcpy(&ref, said.data(), sizeof ref);
    auto to = link.to(ref);
    const auto level = round % 2 ? completion_level::visible : completion_level::local;
    auto put = co_await async_gather(kv_view(g, data, blocks), what, to, 0, {.through = &through, .level = level});
    co_await to.async_commit();
    co_await async_scatter(link.from(ref), 0, kv_view(g, back, blocks), what,
                           {.through = &through, .digest = put.digest});
    must(same(data, back), "what came back is not what was put");
    link_message sum(sizeof put.digest);
    std::memcpy(sum.data(), &put.digest, sizeof put.digest);
    co_await link.async_send(std::move(sum));
  }
  (void)co_await link.async_closed(as_result);
}

// Both to the other, at once.
awaitable<void> work(std::string at, bool shared, std::promise<std::string>& says, std::future<std::string> hears) {
  window_table windows(co_await asio::this_coro::executor);
  const link_options how{.connections = 2, .credits = 16, .messages = 4, .chunk = 16 << 10};
  auto door = link_listener::listen(windows, at, how).value();
  says.set_value(door.url());
  const auto theirs = hears.get();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> { co_await offer(windows, co_await door.async_accept(), shared); });
    co_await visit(co_await async_connect(windows, theirs, how));
  });
  if (v.error()) throw boost::system::system_error(v.error());
}

// What went wrong; empty: nothing.
std::string run_worker(std::string at, bool shared, std::promise<std::string> says, std::future<std::string> hears) {
  asio::io_context ctx{1};
  std::string failed = "it did not end";
  asio::co_spawn(ctx, work(std::move(at), shared, says, std::move(hears)), [&](std::exception_ptr e) {
    failed.clear();
    try {
      if (e) std::rethrow_exception(e);
    } catch (const std::exception& what) {
      failed = what.what();
    }
  });
  cokv::run(ctx);
  return failed;
}

std::string fresh(const std::string& scheme) {
  static int n = 0;
  if (scheme != "shm") return scheme + "://localhost:0";
  const auto name = "cokv-threads-" + std::to_string(::getpid()) + "-" + std::to_string(n++);
  return "shm://" + (std::filesystem::temp_directory_path() / name).string();
}

}  // namespace

TEST_CASE("link threads: two contexts on two threads put and get each other's memory, both ways at once") {
  for (auto [scheme, shared] : {std::pair{"tcp", false}, {"shm", false}, {"shm", true}}) {
    CAPTURE(std::string(scheme));
    CAPTURE(shared);
    std::promise<std::string> urls[2];
    std::future<std::string> heard[2] = {urls[1].get_future(), urls[0].get_future()};
    std::string failed[2];
    std::vector<std::thread> threads;
    for (int i : {0, 1})
      threads.emplace_back([&, i, at = fresh(scheme), shared = shared] {
        failed[i] = run_worker(at, shared, std::move(urls[i]), std::move(heard[i]));
      });
    for (auto& t : threads) t.join();
    CHECK(failed[0] == "");
    CHECK(failed[1] == "");
  }
}

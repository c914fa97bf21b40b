// Device memory between two real processes, on one GPU, or on two that reach each other.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::size_t bytes = 64 << 20;

struct told {
  bool ready = false;
  window_ref window;
};

// Offers a window of its device's memory until it is killed.
[[noreturn]] void offer(const std::string& at, int to) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  asio::io_context ctx{1};
  told out;
  auto d = open_device(ctx.get_executor(), "cuda:0");
  if (d) {
    window_table windows(ctx.get_executor());
    if (windows.stage(*d)) ::_exit(1);
    auto door = link_listener::listen(windows, at);
    auto memory = d->allocate(bytes, memory_kind::exportable);
    if (!door || !memory) ::_exit(1);
    auto w = windows.expose({*memory}, window_access::both).value();
    out = {true, w.ref()};
    if (::write(to, &out, sizeof out) != sizeof out) ::_exit(1);
    peer_link link;
    door->async_accept([&](error_code, peer_link l) { link = std::move(l); });
    auto open = asio::make_work_guard(ctx);
    run(ctx);
  }
  (void)!::write(to, &out, sizeof out);
  ::_exit(0);
}

awaitable<void> visit(device d, std::string at, window_ref window, ::pid_t other) {
  window_table windows(d.get_executor());
  if (auto ec = windows.stage(d)) throw boost::system::system_error(ec);
  auto link = co_await async_connect(windows, at);
  auto copies = d.make_stream().value();
  auto mine = d.allocate(bytes).value(), back = d.allocate(bytes).value();
  for (int round = 0; round < 10; ++round) {
    auto data = filled(d, bytes, 3 * round + 1), seen = filled(d, bytes, 0);
    if (auto ec = copies.copy(mine, data)) throw boost::system::system_error(ec);
    co_await async_flush(mine, link.to(window), 0, copies.record());
    co_await async_fetch(link.from(window), 0, back);
    if (auto ec = copies.copy(seen, back)) throw boost::system::system_error(ec);
    co_await copies.record().async_wait();
    CHECK(all_are(seen, 3 * round + 1));
    co_await async_fetch(link.from(window), 0, seen);  // into pinned memory
    CHECK(all_are(seen, 3 * round + 1));
  }
  ::kill(other, SIGKILL);
  (void)co_await link.async_closed();
  CHECK((co_await async_flush(mine, link.to(window), 0, {}, completion_level::visible, as_result)).error());
}

}  // namespace

TEST_CASE("cuda_ipc: two processes put and get each other's device memory, and a death ends it") {
  const auto at =
      "cuda_ipc://" + (std::filesystem::temp_directory_path() / ("cokv-ipc-" + std::to_string(::getpid()))).string();
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto child = ::fork();  // before anything of CUDA
  REQUIRE(child >= 0);
  if (child == 0) offer(at, ends[1]);
  ::close(ends[1]);
  told out;
  const auto heard = ::read(ends[0], &out, sizeof out);
  ::close(ends[0]);
  if (heard == sizeof out && !out.ready) {
    MESSAGE("skipped: ", explain_device("cuda:0"));
    ::waitpid(child, nullptr, 0);
    return;
  }
  CHECK(heard == sizeof out);
  asio::io_context ctx{1};
  {
    auto d = open_device(ctx.get_executor(), "cuda:1");
    if (!d) d = open_device(ctx.get_executor(), "cuda:0");
    asio::co_spawn(ctx, visit(*d, at, out.window, child), [&](std::exception_ptr e) {
      if (e) ::kill(child, SIGKILL), std::rethrow_exception(e);
    });
    run(ctx);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
}

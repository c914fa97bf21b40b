// Device memory between two real processes, on one GPU, or on two that reach each other.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/clock.hpp"
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

namespace {

constexpr auto told_by = "COKV_TEST_IPC_PIPE";  // in the environment of a process that copies until it is killed

struct errand {
  window_ref window;
  char at[100] = {};
};

// Puts all of its memory, again and again, with several puts under way.
awaitable<void> put_for_ever(device d, errand what) {
  window_table windows(d.get_executor());
  if (auto ec = windows.stage(d)) throw boost::system::system_error(ec);
  auto link = co_await async_connect(windows, what.at);
  auto mine = d.allocate(bytes).value();
  auto one = [](buffer from, sink to) -> awaitable<void> {
    for (;;) co_await async_flush(from, to, 0);
  };
  for (int i = 0; i < 8; ++i) asio::co_spawn(d.get_executor(), one(mine, link.to(what.window)), asio::detached);
  (void)co_await link.async_closed();
}

// This program once more, as that process; CUDA's state does not survive a fork.
::pid_t start_again(const errand& what) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  ::setenv(told_by, std::to_string(ends[0]).c_str(), 1);
  const auto child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::execl("/proc/self/exe", "again", "-tc=cuda_ipc: the half that is killed", static_cast<char*>(nullptr));
    ::_exit(1);
  }
  ::unsetenv(told_by);
  ::close(ends[0]);
  REQUIRE(::write(ends[1], &what, sizeof what) == sizeof what);
  ::close(ends[1]);
  return child;
}

awaitable<void> outlive(device d, std::string at) {
  auto& time = clock::of(d.get_executor());
  window_table windows(d.get_executor());
  if (auto ec = windows.stage(d)) throw boost::system::system_error(ec);
  auto door = link_listener::listen(windows, at).value();
  auto copies = d.make_stream().value();
  auto memory = d.allocate(bytes, memory_kind::exportable).value();
  auto pattern = filled(d, bytes, 0x33), seen = filled(d, bytes, 0);
  for (int round = 0; round < 5; ++round) {
    auto w = windows.expose({memory}, window_access::both).value();
    errand what{w.ref()};
    at.copy(what.at, sizeof what.at - 1);
    const auto child = start_again(what);
    auto link = co_await door.async_accept();
    while (w.bytes_put() < 4 * bytes) co_await time.async_wait_for(std::chrono::milliseconds(1));
    ::kill(child, SIGKILL);
    (void)co_await link.async_closed();
    co_await w.async_revoke();
    for (int look = 0; look < 5; ++look) {
      if (look == 0)
        if (auto ec = copies.copy(memory, pattern)) throw boost::system::system_error(ec);
      if (auto ec = copies.copy(seen, memory)) throw boost::system::system_error(ec);
      co_await copies.record().async_wait();
      CHECK(all_are(seen, 0x33));
      co_await time.async_wait_for(std::chrono::milliseconds(100));
    }
    ::waitpid(child, nullptr, 0);
  }
}

}  // namespace

TEST_CASE("cuda_ipc: the half that is killed") {
  const auto* pipe = ::getenv(told_by);
  if (!pipe) return;
  errand what;
  REQUIRE(::read(std::stoi(pipe), &what, sizeof what) == sizeof what);
  asio::io_context ctx{1};
  auto d = open_device(ctx.get_executor(), "cuda:0").value();
  asio::co_spawn(ctx, put_for_ever(d, what), asio::detached);
  run(ctx);
}

TEST_CASE("cuda_ipc: who is killed in the middle of its copies writes nothing once its window is revoked") {
  const auto at =
      "cuda_ipc://" + (std::filesystem::temp_directory_path() / ("cokv-killed-" + std::to_string(::getpid()))).string();
  asio::io_context ctx{1};
  auto d = open_device(ctx.get_executor(), "cuda:0");
  if (!d) {
    MESSAGE("skipped: ", explain_device("cuda:0"));
    return;
  }
  asio::co_spawn(ctx, outlive(*d, at), [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  });
  run(ctx);
}

// Two processes and real sockets: one is killed or stopped in the middle of transfers.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t window_bytes = 1 << 20;

// A process that offers a window until it is killed.
class other_process {
 public:
  explicit other_process(bool shares) {
    if (shares) {
      static int n = 0;
      const auto name = "cokv-process-" + std::to_string(::getpid()) + "-" + std::to_string(n++);
      url_ = "shm://" + (std::filesystem::temp_directory_path() / name).string();
    }
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    id_ = ::fork();
    REQUIRE(id_ >= 0);
    if (id_ == 0) serve(ends[1]);
    ::close(ends[1]);
    REQUIRE(::read(ends[0], &told_, sizeof told_) == sizeof told_);
    ::close(ends[0]);
  }
  ~other_process() {
    signal(SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }
  void signal(int which) { ::kill(id_, which); }
  std::string url() const { return url_.empty() ? "tcp://127.0.0.1:" + std::to_string(told_.port) : url_; }
  window_ref window() const { return told_.window; }

 private:
  struct told {
    std::uint16_t port = 0;
    window_ref window;
  };

  [[noreturn]] void serve(int to) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    asio::io_context context(1);
    window_table windows(context.get_executor());
    auto memory = url_.empty() ? blank(window_bytes) : allocate_shared(window_bytes).value();
    auto door = link_listener::listen(windows, url_.empty() ? "tcp://127.0.0.1:0" : url_).value();
    auto offered = windows.expose({memory}, window_access::both).value();
    const auto url = door.url();
    told t;
    if (url_.empty()) t.port = static_cast<std::uint16_t>(std::stoul(url.substr(url.rfind(':') + 1)));
    t.window = offered.ref();
    if (::write(to, &t, sizeof t) != sizeof t) ::_exit(1);
    std::vector<peer_link> links;
    asio::co_spawn(
        context,
        [&]() -> awaitable<void> {
          while (auto link = co_await door.async_accept(as_result)) links.push_back(std::move(*link));
        },
        asio::detached);
    context.run();
    ::_exit(0);
  }

  std::string url_;  // none: a port that it tells
  pid_t id_ = -1;
  told told_;
};

// Puts and gets until something fails: how many rounds were right, and what failed.
awaitable<std::pair<int, error_code>> exchange(peer_link& link, window_ref window, int signal_after,
                                               std::function<void()> then) {
  auto data = patterned(window_bytes, 1), back = blank(window_bytes);
  for (int round = 0;; ++round) {
    if (round == signal_after) then();
    if (round == 10'000) co_return std::pair(round, error_code());
    auto put = co_await async_flush(data, link.to(window), 0, {}, completion_level::visible, as_result);
    if (!put) co_return std::pair(round, put.error());
    auto got = co_await async_fetch(link.from(window), 0, back, {}, as_result);
    if (!got) co_return std::pair(round, got.error());
    CHECK(same(data.bytes(), back.bytes()));
  }
}

}  // namespace

TEST_CASE(
    "link processes: a peer that is killed, or stands still for too long, is an error to what it breaks, and gone") {
  for (auto [how, shares] : {std::pair(SIGKILL, false), {SIGSTOP, false}, {SIGKILL, true}, {SIGSTOP, true}}) {
    CAPTURE(how);
    CAPTURE(shares);
    std::optional<other_process> peer(std::in_place, shares);
    bool ended = false;
    auto body = [&](asio::any_io_executor ex) -> awaitable<void> {
      window_table here(ex);
      auto link = co_await async_connect(here, peer->url(), {.silence = 2s});
      const auto [rounds, ec] = co_await exchange(link, peer->window(), 20, [&] { peer->signal(how); });
      CHECK(rounds >= 20);
      CHECK(ec == errc::unavailable);
      CHECK((co_await link.async_closed(as_result)).has_value());
      CHECK(link.error() == errc::unavailable);
      // A process that dies may still take a connection for a moment.
      const auto again_ec = (co_await async_connect(here, peer->url(), {.greeting = 200ms}, as_result)).error();
      CHECK(again_ec);
      if (how == SIGSTOP) CHECK(again_ec == errc::deadline);
      // It comes back as another process: windows of before mean nothing there.
      const auto before = peer->window();
      peer.reset();
      peer.emplace(shares);
      auto again = co_await async_connect(here, peer->url());
      const auto [none, stale] = co_await exchange(again, before, -1, [] {});
      CHECK(none == 0);
      CHECK(stale == errc::stale_reference);
      again.close();
      (void)co_await again.async_closed();
      ended = true;
    };
    asio::io_context context(1);
    asio::co_spawn(context, body(context.get_executor()), [](std::exception_ptr e) {
      if (e) std::rethrow_exception(e);
    });
    context.run_for(2min);
    CHECK(ended);
  }
}

// The child writes into what its parent offers, until it is stopped; its memory is not given back before it is dead.
TEST_CASE("link processes: what a stopped process may still write into stays in quarantine until it is dead") {
  static int n = 0;
  const auto url = "shm://" + (std::filesystem::temp_directory_path() /
                               ("cokv-writer-" + std::to_string(::getpid()) + "-" + std::to_string(n++)))
                                  .string();
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    window_ref to;
    if (::read(ends[0], &to, sizeof to) != sizeof to) ::_exit(1);
    asio::io_context context(1);
    asio::co_spawn(
        context,
        [&]() -> awaitable<void> {
          window_table own(context.get_executor());
          auto link = co_await async_connect(own, url, {.silence = 1s});
          auto data = patterned(window_bytes);
          for (;;) co_await async_flush(data, link.to(to), 0);
        },
        asio::detached);
    context.run();
    ::_exit(0);
  }
  asio::io_context context(1);
  bool ended = false;
  auto body = [&]() -> awaitable<void> {
    const auto ex = context.get_executor();
    window_table windows(ex);
    auto memory = allocate_shared(window_bytes).value();
    auto w = windows.expose({memory}, window_access::put).value();
    auto door = link_listener::listen(windows, url, {.silence = 1s}).value();
    const auto ref = w.ref();
    CHECK(::write(ends[1], &ref, sizeof ref) == sizeof ref);
    auto link = co_await door.async_accept();
    while (w.bytes_put() < 20 * window_bytes) co_await clock::of(ex).async_wait_for(1ms);
    ::kill(child, SIGSTOP);
    CHECK((co_await link.async_closed(as_result)).has_value());
    CHECK(link.error() == errc::unavailable);
    bool revoked = false;
    w.async_revoke([&](error_code) { revoked = true; });
    co_await clock::of(ex).async_wait_for(200ms);
    CHECK(!revoked);
    CHECK(memory.use_count() > 1);
    ::kill(child, SIGKILL);
    while (!revoked) co_await clock::of(ex).async_wait_for(1ms);
    CHECK(memory.use_count() == 1);
    ended = true;
  };
  asio::co_spawn(context, body(), [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  });
  context.run_for(1min);
  CHECK(ended);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

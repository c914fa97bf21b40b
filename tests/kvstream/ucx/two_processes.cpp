// Two processes: one is killed or stopped in the middle of transfers. The other one is this program again, since a
// process that has begun to use UCX cannot be forked.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <optional>

#include "kvstream/transfers.hpp"
#include "linked.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t window_bytes = 4 << 20;
constexpr const char* telling = "COKV_TEST_TELL";  // the descriptor where the other process says what it offers

struct told {
  std::uint16_t port = 0;
  window_ref window;
};

class other_process {
 public:
  other_process() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const auto tell = std::to_string(ends[1]);
    id_ = ::fork();
    REQUIRE(id_ >= 0);
    if (id_ == 0) {
      ::setenv(telling, tell.c_str(), 1);
      ::execl("/proc/self/exe", "other", "--no-skip", "--minimal", "--test-case=ucx: the other process", nullptr);
      ::_exit(1);
    }
    ::close(ends[1]);
    REQUIRE(::read(ends[0], &told_, sizeof told_) == sizeof told_);
    ::close(ends[0]);
  }
  ~other_process() {
    signal(SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }
  void signal(int which) { ::kill(id_, which); }
  std::string url() const { return "ucx://127.0.0.1:" + std::to_string(told_.port); }
  window_ref window() const { return told_.window; }

 private:
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
    CHECK(same(data, back));
  }
}

}  // namespace

TEST_CASE("ucx: the other process" * doctest::skip()) {
  const char* to = std::getenv(telling);
  REQUIRE(to);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  asio::io_context context(1);
  window_table windows(context.get_executor());
  auto memory = blank(window_bytes);
  auto door = link_listener::listen(windows, "ucx://127.0.0.1:0").value();
  auto offered = windows.expose({memory}, window_access::both).value();
  const auto url = door.url();
  const told t{static_cast<std::uint16_t>(std::stoul(url.substr(url.rfind(':') + 1))), offered.ref()};
  REQUIRE(::write(std::atoi(to), &t, sizeof t) == sizeof t);
  std::vector<peer_link> links;
  asio::co_spawn(
      context,
      [&]() -> awaitable<void> {
        while (auto link = co_await door.async_accept(as_result)) links.push_back(std::move(*link));
      },
      asio::detached);
  cokv::run(context);
}

TEST_CASE("ucx: a process that is killed, or stands still for too long, is an error to what it breaks, and gone") {
  for (int how : {SIGKILL, SIGSTOP}) {
    CAPTURE(how);
    std::optional<other_process> peer(std::in_place);
    run_body([](int how, std::optional<other_process>& peer) -> awaitable<void> {
      window_table here(co_await asio::this_coro::executor);
      auto link = co_await async_connect(here, peer->url(), {.silence = 2s});
      const auto [rounds, ec] = co_await exchange(link, peer->window(), 5, [&] { peer->signal(how); });
      CHECK(rounds >= 5);
      CHECK(ec == errc::unavailable);
      CHECK((co_await link.async_closed(as_result)).has_value());
      CHECK(link.error() == errc::unavailable);
      const auto again_ec = (co_await async_connect(here, peer->url(), {.greeting = 200ms}, as_result)).error();
      CHECK(again_ec);
      if (how == SIGSTOP) CHECK(again_ec == errc::deadline);
      // It comes back as another process: windows of before mean nothing there.
      const auto before = peer->window();
      peer.reset();
      peer.emplace();
      auto again = co_await async_connect(here, peer->url());
      const auto [none, stale] = co_await exchange(again, before, -1, [] {});
      CHECK(none == 0);
      CHECK(stale == errc::stale_reference);
      again.close();
      (void)co_await again.async_closed();
    }(how, peer));
  }
}

// Another process that offers a window until it is killed or stopped, and what its peer sees of that.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/transfers.hpp"

namespace cokv::test {

class other_process {
 public:
  // `serve` runs in the other process: it tells through this descriptor what it offers.
  explicit other_process(const std::function<void(int to)>& serve) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    id_ = ::fork();
    REQUIRE(id_ >= 0);
    if (id_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      serve(ends[1]);
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
  std::uint16_t port() const { return told_.port; }  // of a URL that has one
  window_ref window() const { return told_.window; }

  // Over there: offers the memory at the URL, tells, and serves whoever comes.
  static void offer(const std::string& at, const buffer& memory, window_table& windows, asio::io_context& context,
                    int to) {
    auto door = link_listener::listen(windows, at).value();
    auto offered = windows.expose({memory}, window_access::both).value();
    const auto url = door.url();
    told t{.window = offered.ref()};
    if (!url.starts_with("shm:")) t.port = static_cast<std::uint16_t>(std::stoul(url.substr(url.rfind(':') + 1)));
    if (::write(to, &t, sizeof t) != sizeof t) ::_exit(1);
    std::vector<peer_link> links;
    asio::co_spawn(
        context,
        [&]() -> awaitable<void> {
          while (auto link = co_await door.async_accept(as_result)) links.push_back(std::move(*link));
        },
        asio::detached);
    cokv::run(context);
  }

 private:
  struct told {
    std::uint16_t port = 0;
    window_ref window;
  };

  pid_t id_ = -1;
  told told_;
};

// Puts and gets until something fails: how many rounds were right, and what failed.
inline awaitable<std::pair<int, error_code>> exchange(peer_link& link, window_ref window, int signal_after,
                                                      std::function<void()> then) {
  auto data = patterned(window.size, 1), back = blank(window.size);
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

// SIGKILL or SIGSTOP in the middle is an error to what it breaks; it comes back as another process.
template <class Peer>  // made without arguments; url()
awaitable<void> outlive(int how, int rounds_before) {
  using namespace std::chrono_literals;
  std::optional<Peer> peer(std::in_place);
  window_table here(co_await asio::this_coro::executor);
  auto link = co_await async_connect(here, peer->url(), {.silence = 2s});
  const auto [rounds, ec] = co_await exchange(link, peer->window(), rounds_before, [&] { peer->signal(how); });
  CHECK(rounds >= rounds_before);
  CHECK(ec == errc::unavailable);
  CHECK((co_await link.async_closed(as_result)).has_value());
  CHECK(link.error() == errc::unavailable);
  // A process that dies may still take a connection for a moment.
  const auto again_ec = (co_await async_connect(here, peer->url(), {.greeting = 200ms}, as_result)).error();
  CHECK(again_ec);
  if (how == SIGSTOP) CHECK(again_ec == errc::deadline);
  // Windows of before mean nothing to the next one.
  const auto before = peer->window();
  peer.reset();
  peer.emplace();
  auto again = co_await async_connect(here, peer->url());
  const auto [none, stale] = co_await exchange(again, before, -1, [] {});
  CHECK(none == 0);
  CHECK(stale == errc::stale_reference);
  again.close();
  (void)co_await again.async_closed();
}

}  // namespace cokv::test

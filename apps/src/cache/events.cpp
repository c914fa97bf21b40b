#include "cache/events.hpp"

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/deadline.hpp"

namespace cokv::cache {
namespace {

using http::exchange;
using http::status;

constexpr duration heartbeat = std::chrono::seconds(15);  // so that a connection that died is noticed
constexpr duration look_again = std::chrono::seconds(1);  // whether the server wants to end
constexpr std::size_t followers = 64;

}  // namespace

awaitable<void> follow(exchange& x, event_log& log) {
  std::optional<namespace_id> only;
  if (const auto asked = x.request().query_value("namespace")) {
    only = namespace_id::parse(*asked);
    if (!only)
      co_return (void) co_await x.refuse(
          {status::bad_request, "namespace is not 64 hexadecimal digits", "namespace", "invalid_argument"});
  }
  if (log.followers() >= followers) {
    x.set(http::field::retry_after, "1");
    co_return (void) co_await x.refuse({status::service_unavailable, "too many are following", {}, "busy"});
  }
  const auto ex = co_await asio::this_coro::executor;
  auto& time = clock::of(ex);
  event_log::follower self(log, ex);
  auto wanted = log.newest() + 1;
  bool lost = false;
  if (const auto had = x.request().fields["Last-Event-ID"]; !had.empty()) {
    const auto next = parse_event_id({had.data(), had.size()}, log.epoch());
    lost = !next || log.next(*next).lost;
    if (!lost) wanted = *next;
  }
  x.set(http::field::cache_control, "no-store");
  x.start(status::ok, "text/event-stream");
  if (co_await x.write(std::string_view(": follows\n\n"))) co_return;
  auto spoke = time.now();
  while (!x.last_answer()) {
    const auto [gone, event] = log.next(wanted);
    std::string text;
    if (lost || gone) {
      lost = false;
      wanted = log.newest() + 1;
      text = "id: " + event_id(log.epoch(), wanted - 1) + "\nevent: overflow\ndata: {}\n\n";
    } else if (event) {
      ++wanted;
      const auto& ns = event->what.ns;
      if ((only && *only != ns) || !x.who().may_use(ns)) continue;
      text = event_text(*event, log.epoch());
    } else if (time.now() - spoke >= heartbeat) {
      text = ":\n\n";
    } else {
      (void)co_await with_deadline(self.more().async_receive(), look_again);
      continue;
    }
    if (co_await x.write(std::string_view(text))) co_return;
    spoke = time.now();
  }
  co_await x.finish();
}

}  // namespace cokv::cache

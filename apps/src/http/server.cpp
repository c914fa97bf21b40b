#include "http/server.hpp"

#include <spdlog/spdlog.h>

#include <optional>

#include "cokv/runtime/detail/passed_descriptors.hpp"
#include "http/connection.hpp"

namespace cokv::http {
namespace {

using state_ptr = std::shared_ptr<detail::server_state>;

// A client that is about to send its next request would find its connection gone: younger ones are left alone.
constexpr duration spare_idle = std::chrono::milliseconds(100);

// Closes the longest idle connection, or says when there will be one to close.
std::optional<time_point> make_place(detail::server_state& s) {
  const auto now = clock::of(s.ex).now();
  detail::connection* longest = nullptr;
  for (auto* c : s.connections) {
    if (c->closed()) return std::nullopt;  // it goes, and a place with it
    const bool spare = c->idle() || c->lingers() || c->shaking_hands();
    if (spare && (!longest || c->idle_since() < longest->idle_since())) longest = c;
  }
  if (!longest) return std::nullopt;
  if (now < longest->idle_since() + spare_idle) return longest->idle_since() + spare_idle;
  longest->close();
  return std::nullopt;
}

awaitable<void> changed_or(detail::server_state& s, time_point until) {
  co_await asio::experimental::make_parallel_group(clock::of(s.ex).async_wait_until(until),
                                                   s.changed.async_receive(asio::deferred))
      .async_wait(asio::experimental::wait_for_one(), asio::deferred);
}

awaitable<void> place_for_one(state_ptr s) {
  while (s->connections.size() >= s->options.limit.connections && !s->draining) {
    s->now = {.last_answers = true, .place_wanted = true};
    co_await changed_or(*s, make_place(*s).value_or(time_point::max()));
  }
  s->now = {.last_answers = s->draining};
}

// The longest handshake makes way for another once it has had a second.
awaitable<void> place_for_a_handshake(state_ptr s) {
  constexpr duration had = std::chrono::seconds(1);
  while (s->options.tls && s->handshakes >= s->options.limit.handshakes && !s->draining) {
    detail::connection* longest = nullptr;
    for (auto* c : s->connections)
      if (c->shaking_hands() && (!longest || c->idle_since() < longest->idle_since())) longest = c;
    const auto until = longest ? longest->idle_since() + had : time_point::max();
    if (longest && clock::of(s->ex).now() >= until) longest->close();
    co_await changed_or(*s, longest && clock::of(s->ex).now() >= until ? time_point::max() : until);
  }
}

// Who comes over TCP finds descriptors left, whatever clients of this machine pass. Said once a minute: those that are
// closed make room for others.
awaitable<void> place_for_descriptors(state_ptr s, time_point& say_again) {
  const auto at = s->accepting.local_endpoint();
  while (at.is_local() && cokv::detail::too_many_passed() && !s->draining) {
    const auto now = clock::of(s->ex).now();
    if (now >= say_again) {
      spdlog::warn("{}: its clients passed too many descriptors, new clients wait", at.to_string());
      say_again = now + std::chrono::minutes(1);
    }
    co_await changed_or(*s, now + std::chrono::milliseconds(100));
  }
}

awaitable<void> accept(state_ptr s, task_group& group) {
  time_point say_again{};
  while (!s->draining) {
    co_await place_for_descriptors(s, say_again);
    auto [ec, stream] = co_await s->accepting.async_accept(asio::as_tuple(asio::deferred));
    if (s->draining || ec == asio::error::operation_aborted) co_return;
    if (ec) {  // most often too many open files: what is open goes on, new ones wait
      spdlog::warn("accept: {}", ec.message());
      co_await clock::of(s->ex).async_wait_for(std::chrono::milliseconds(100), asio::as_tuple(asio::deferred));
      continue;
    }
    co_await place_for_one(s);
    co_await place_for_a_handshake(s);
    auto made = std::make_unique<detail::connection>(s, std::move(stream));
    group.spawn([c = std::move(made)] { return c->run(); });
  }
}

awaitable<void> drained(state_ptr s) {
  auto& time = clock::of(s->ex);
  while (!s->connections.empty() && time.now() < s->drain_until) co_await changed_or(*s, s->drain_until);
  std::size_t cut = 0;
  for (auto* c : s->connections) cut += c->stop_handler();
  if (cut == 0) co_return;
  spdlog::warn("the time to drain is over: {} {} cut short", cut, cut == 1 ? "request was" : "requests were");
  const auto until = time.now() + s->options.limit.farewell;
  while (!s->connections.empty() && time.now() < until) co_await changed_or(*s, until);
}

awaitable<void> serve(state_ptr s) {
  auto ended = co_await with(task_group{}, [s](task_group& group) -> awaitable<void> {
    co_await accept(s, group);
    co_await drained(s);
    group.cancel();
  });
  if (!ended && ended.error() != asio::error::operation_aborted) spdlog::error("server: {}", ended.error().message());
}

}  // namespace

server::server(asio::any_io_executor ex, server_options options)
    : state_(std::make_shared<detail::server_state>(std::move(ex), std::move(options))) {}

void server::route(verb method, std::string_view pattern, handler h, route_options options) {
  state_->routes.add(
      method, pattern,
      std::make_shared<const detail::target>(detail::target{std::move(h), options, std::string(pattern)}));
}

void server::listen(const endpoint& at, std::string_view flag) {
  auto made = network::of(state_->ex).listen(at);
  if (!made) throw config_error(std::string(flag) + ' ' + at.to_string() + ": " + made.error().message());
  state_->accepting = std::move(*made);
}

awaitable<void> server::run() { return serve(state_); }

void server::drain(duration grace) {
  state_->drain_until = clock::of(state_->ex).now() + grace;
  state_->now.last_answers = true;
  if (!std::exchange(state_->draining, true)) {
    state_->accepting.close();
    for (auto* c : state_->connections)
      if (c->idle() || c->shaking_hands()) c->close();
  }
  state_->changed.try_send(true);
}

}  // namespace cokv::http

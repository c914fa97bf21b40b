#include "http/server.hpp"

#include <spdlog/spdlog.h>

#include "http/connection.hpp"

namespace cokv::http {
namespace {

using state_ptr = std::shared_ptr<detail::server_state>;

void close_idle_one(detail::server_state& s) {
  detail::connection* longest = nullptr;
  for (auto* c : s.connections)
    if (c->idle() && (!longest || c->idle_since() < longest->idle_since())) longest = c;
  if (longest) longest->close();
}

awaitable<void> accept(state_ptr s, task_group& group) {
  while (!s->draining) {
    auto [ec, stream] = co_await s->accepting.async_accept(asio::as_tuple(asio::deferred));
    if (s->draining || ec == asio::error::operation_aborted) co_return;
    if (ec) {  // most often too many open files: what is open goes on, new ones wait
      spdlog::warn("accept: {}", ec.message());
      co_await clock::of(s->ex).async_wait_for(std::chrono::milliseconds(100), asio::as_tuple(asio::deferred));
      continue;
    }
    while (s->connections.size() >= s->options.limit.connections && !s->draining) {
      close_idle_one(*s);
      co_await s->changed.async_receive(asio::as_tuple(asio::deferred));
    }
    auto made = std::make_unique<detail::connection>(s, std::move(stream));
    group.spawn([c = std::move(made)] { return c->run(); });
  }
}

awaitable<void> drained(state_ptr s) {
  auto& time = clock::of(s->ex);
  while (!s->connections.empty() && time.now() < s->drain_until)
    co_await asio::experimental::make_parallel_group(time.async_wait_until(s->drain_until),
                                                     s->changed.async_receive(asio::deferred))
        .async_wait(asio::experimental::wait_for_one(), asio::deferred);
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
  if (!std::exchange(state_->draining, true)) {
    state_->accepting.close();
    for (auto* c : state_->connections)
      if (c->idle()) c->close();
  }
  state_->changed.try_send(true);
}

}  // namespace cokv::http

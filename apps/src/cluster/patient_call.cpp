#include "cluster/patient_call.hpp"

#include "cokv/runtime/clock.hpp"

namespace cokv::cluster {

bool is_held(unsigned code, std::string_view body) {
  return code == 409 && (body.find("\"held_epoch\"") != body.npos || body.find("\"stale_epoch\"") != body.npos);
}

awaitable<result<http::reply>> ask_patiently(http::client& calls, http::client_request r, duration patience,
                                             duration pause) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  for (const auto until = time.now() + patience;;) {
    auto reply = co_await calls.ask(r);
    if (!reply || !is_held(reply->code, reply->body) || time.now() >= until) co_return reply;
    co_await time.async_wait_for(pause, asio::deferred);
  }
}

awaitable<result<http::line_stream>> open_patiently(http::client& calls, http::client_request r, duration patience,
                                                    duration pause) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  for (const auto until = time.now() + patience;;) {
    auto lines = co_await calls.open_lines(r);
    if (!lines || !is_held(lines->code(), lines->refusal()) || time.now() >= until) co_return lines;
    co_await time.async_wait_for(pause, asio::deferred);
  }
}

}  // namespace cokv::cluster

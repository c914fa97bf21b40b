// Where the answer to one request goes: to the client that sent it, or to where it is kept for several.
#pragma once

#include <string>
#include <string_view>

#include "http/exchange.hpp"

namespace cokv::openai {

class sink {
 public:
  virtual ~sink() = default;
  // One of: a refusal, an object, or events with their end behind them.
  virtual awaitable<void> refuse(http::problem p) = 0;
  virtual awaitable<void> whole(std::string object) = 0;
  // `last_words`: what the events end with when the server stops before they are complete.
  virtual void start_events(std::string last_words) = 0;
  virtual awaitable<error_code> write(std::string_view events) = 0;  // an error: nobody takes more
  virtual awaitable<void> finish(bool complete) = 0;
};

class exchange_sink final : public sink {
 public:
  explicit exchange_sink(http::exchange& x) : x_(x) {}
  awaitable<void> refuse(http::problem p) override {
    if (p.code == http::status::service_unavailable) x_.set(http::field::retry_after, "1");
    co_await x_.refuse(std::move(p));
  }
  awaitable<void> whole(std::string object) override {
    co_await x_.respond(http::status::ok, "application/json", object);
  }
  void start_events(std::string last_words) override {
    x_.set(http::field::cache_control, "no-cache");
    x_.last_words(std::move(last_words));
    x_.start(http::status::ok, "text/event-stream");
  }
  awaitable<error_code> write(std::string_view events) override { return x_.write(events); }
  awaitable<void> finish(bool) override { co_await x_.finish(); }

 private:
  http::exchange& x_;
};

}  // namespace cokv::openai

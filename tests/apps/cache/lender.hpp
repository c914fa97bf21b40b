// A cache server that lends its memory, in the test's own context.
#pragma once

#include <unistd.h>

#include "../http_fixture.hpp"
#include "cache/front.hpp"
#include "cache/lending.hpp"
#include "cokv/runtime/result.hpp"
#include "fixture.hpp"

namespace cokv::test {

inline std::string fresh_path() {
  static int count = 0;
  return "/tmp/cokv-lending-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

struct lender_options {
  std::uint64_t limit = 1 << 20;
  std::uint64_t room = 1 << 19;  // that may be lent
  std::size_t shards = 1;
  http::api_keys keys = {};
  std::uint64_t id = 4711;
  std::uint64_t most = 512;  // leases
  std::uint64_t most_mapped = std::uint64_t{16} << 40;
  http::limits web_limit = {};
};

// A server with a socket. What the requests need lives as long as the last of them.
class lender {
 public:
  struct parts {
    parts(asio::any_io_executor ex, lender_options o, const std::string& path)
        : memory(ex, {.limit_bytes = o.limit, .readable = true}),
          lending(std::make_shared<cache::lending>(memory.lent(), o.id, o.room, path, o.most, o.most_mapped)),
          front(ex, memory, {{"memory", &memory}},
                {.listen = {"127.0.0.1", 0},
                 .socket = path,
                 .shards = o.shards,
                 .web = {.limit = o.web_limit, .keys = std::move(o.keys)},
                 .service = {.lending = lending}}) {}
    memory_store memory;
    std::shared_ptr<cache::lending> lending;
    cache::front front;
  };

  lender(asio::any_io_executor ex, lender_options o = {}, std::string path = fresh_path())
      : path_(std::move(path)), parts_(std::make_shared<parts>(ex, std::move(o), path_)) {
    asio::co_spawn(ex, run(parts_, ended_), asio::detached);
  }
  ~lender() { stop(); }
  lender(const lender&) = delete;

  void stop() {
    if (!ended()) parts_->front.drain(duration(0));
  }
  bool ended() const { return *ended_; }
  std::string url() const { return "http://" + at().to_string(); }
  std::string local_url() const { return "unix://" + path_; }
  endpoint at() const { return parts_->front.local_endpoint(); }
  endpoint socket() const { return endpoint::local(path_); }
  const std::string& path() const { return path_; }
  memory_store& memory() { return parts_->memory; }
  cache::lending& lending() { return *parts_->lending; }

 private:
  static awaitable<void> run(std::shared_ptr<parts> p, std::shared_ptr<bool> ended) {
    co_await p->front.start();
    co_await p->front.run();
    *ended = true;
  }

  std::string path_;
  std::shared_ptr<bool> ended_ = std::make_shared<bool>(false);
  std::shared_ptr<parts> parts_;
};

// From the answer to any lookup a client knows where memory is lent.
inline awaitable<void> meet(cokv::store& s) { (void)co_await s.async_match(cache_ns, contract_keys(0, 1), as_result); }

inline awaitable<void> until(asio::any_io_executor ex, std::function<bool()> what) {
  for (int i = 0; i < 5000 && !what(); ++i) co_await clock::of(ex).async_wait_for(1ms, asio::deferred);
  CHECK(what());
}

}  // namespace cokv::test

// A router that would be active asks workers for their promise of an epoch of its own: it may be active when a majority of
// them has given it (promise_poll.hpp).
//
//     candidate asks(ex, life, {.period = 500ms}, {.api_key = key});
//     auto r = co_await asks.round(workers);               // "http://10.0.0.2:8001", ...
//     if (r.epoch) be_active(*r.epoch);                    // within two periods: then a promise without a call has run out
//     else wait(r.wait);
//
// Ends within two periods, sooner where a majority has answered. Every kind of cancellation ends it; what was promised
// meanwhile runs out. Belongs to one context.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/promise_poll.hpp"
#include "http/client.hpp"

namespace cokv::cluster {

struct candidate_options {
  duration period = std::chrono::milliseconds(500);  // an answer may take so long
};

class candidate {
 public:
  candidate(asio::any_io_executor ex, std::string router, candidate_options options, http::client_options how);

  struct result {
    std::optional<std::uint64_t> epoch;  // it was promised to this router by a majority
    // Another router has so many of them that no majority can be had now.
    bool held = false;
    duration wait{};  // until it may be otherwise, as far as is known
  };
  // `above`: of an epoch above that one.
  awaitable<result> round(std::vector<std::string> workers, std::uint64_t above = 0);

  // Of a worker that answers and is none, or does not know the key: once as long as it says the same.
  std::function<void(const std::string& url, const std::string& what)> on_problem;

 private:
  http::client& client_of(const std::string& url);
  void note(const std::string& url, const std::string& what);

  asio::any_io_executor ex_;
  std::string router_;
  candidate_options options_;
  http::client_options how_;
  std::map<std::string, http::client> clients_;
  std::map<std::string, std::string> problems_;
};

}  // namespace cokv::cluster

// Whether this router may answer: it has the promise of a majority of the workers that it knows, for as long as none of them
// says that another one has. A standby waits until the router before it is gone, and asks then.
//
//     reign mine(ex, life, options, {.api_key = key});
//     members workers(ex, health, mine.calls(client_options), ...);   // every call says by which router it is
//     co_await mine.win(workers);                                     // a standby: not before the active one is gone
//     group.spawn(mine.keep(workers));                                // ends with close(); throws when it is lost
//
// A router that stood still is told by the first worker that it calls, before anything that it says there counts; it asks
// once more, for it may have been the workers' silence and nobody else came, and is at its end if that fails: what it knows
// of answers is old, and another one has them. Belongs to one context.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cluster/candidate.hpp"
#include "cluster/members.hpp"
#include "cluster/news.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

class reign {
 public:
  // `life`: an id of this run of the router, which no other one has. Throws config_error naming the flag at fault.
  reign(const asio::any_io_executor& ex, std::string life, const options& o, http::client_options how);
  reign(const reign&) = delete;

  // The same, with the claim of this router in every request once it has one.
  http::client_options calls(http::client_options how) const;

  // Until a majority of the workers has promised. Workers that the active router knows are told to `workers`.
  awaitable<void> win(cluster::members& workers);
  // Until close(), or until a later router has the workers; throws std::runtime_error saying so then.
  awaitable<void> keep(cluster::members& workers);
  void close();

  bool active() const noexcept { return claim_->epoch > 0; }
  std::uint64_t epoch() const noexcept { return claim_->epoch; }

 private:
  awaitable<void> stand_by(cluster::members& workers);
  awaitable<bool> ask(cluster::members& workers);

  asio::any_io_executor ex_;
  std::string life_;
  std::chrono::milliseconds period_, lease_;
  std::shared_ptr<cluster::router_claim> claim_;  // epoch 0: none yet
  std::uint64_t above_ = 0;
  std::optional<http::client> active_;  // the router before this one
  cluster::candidate candidate_;
  duration wait_{};
  bool told_ = false;
  cluster::news refused_;
  bool closed_ = false;
};

}  // namespace cokv::serve

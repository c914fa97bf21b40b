// A prefill worker's route: it computes a prompt whose KV another worker wants, and sends it there while it does.
//
//     prefill_service api(engine, links);
//     api.route(server);
//
// | route             | answer                                                                                            |
// |-------------------|---------------------------------------------------------------------------------------------------|
// | POST /v1/prefills | {id, attempt, request, ticket}: 200 {tokens, computed, cached, sent_bytes, over?} once the        |
// |                   | receiver has all of it, or wants no more (over). 400: no such request, or none that the ticket is |
// |                   | of. 422: KV of another model, element type or layout. 502: the receiver can't be reached, or its  |
// |                   | link broke. 503: not now                                                                          |
//
// Who closes the connection cancels it: nothing more is computed or sent.
#pragma once

#include <cstdint>

#include "cluster/departure.hpp"
#include "http/server.hpp"

namespace cokv::cluster {

class prefill_service {
 public:
  // Both outlive it and the server that it was given to.
  prefill_service(engine& e, link_pool& links, departure_options how = {}) : engine_(e), links_(links), how_(how) {}
  prefill_service(const prefill_service&) = delete;

  void route(http::server& s);

  std::uint64_t prompts() const noexcept { return prompts_; }        // that were sent, or were over
  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }  // of KV

 private:
  awaitable<void> compute(http::exchange& x);

  engine& engine_;
  link_pool& links_;
  departure_options how_;
  std::uint64_t prompts_ = 0, sent_bytes_ = 0;
};

}  // namespace cokv::cluster

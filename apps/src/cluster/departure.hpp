// One prompt computed here and decoded elsewhere: each layer's KV of each chunk is on its way to the ticket's room while
// the next is computed, and the token behind the prompt is said as soon as it is sampled.
//
//     auto done = co_await depart(engine, links, request, ticket, {});
//     if (!done) return failed(done.error());                  // the receiver was told, where it can be
//
// |              | depart()                                                                                     |
// |--------------|----------------------------------------------------------------------------------------------|
// | cancellation | every kind: computes and sends nothing more, and drains what is under way                    |
// | blocks       | held until they are sent                                                                     |
// | completes    | the receiver has, and has verified, all of it; or it said that it is over: it needs no more  |
// | errors       | errc::invalid_argument, namespace_mismatch: the ticket is none of this request or of KV like |
// |              | ours; link_pool::get's; engine::submit's; the generation's; errc::unavailable: the link      |
// |              | broke, or the request was preempted                                                          |
#pragma once

#include "cluster/converters.hpp"
#include "cluster/link_pool.hpp"
#include "cluster/other_parts.hpp"
#include "cluster/ticket.hpp"
#include "cokv/engine/engine.hpp"

namespace cokv::cluster {

struct departure_options {
  std::size_t in_flight = 64;        // as outbound_options
  const packing* through = nullptr;  // as gather_options
  converters* convert = nullptr;     // where KV becomes the receiver's element type; none: it has to be ours
  other_parts* others = nullptr;     // of a model in parts: each of them sends its own; outlives it
};

struct departed {
  std::uint32_t tokens = 0, computed = 0, cached = 0;
  std::uint64_t sent_bytes = 0;
  bool over = false;  // the receiver wanted no more of it before it was whole
};

// Both outlive it. `r` is the receiver's request: its max_tokens is for there.
awaitable<result<departed>> depart(engine& e, link_pool& links, generation_request r, cluster::ticket to,
                                   departure_options o = {});

}  // namespace cokv::cluster

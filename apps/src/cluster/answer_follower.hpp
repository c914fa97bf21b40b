// One sequence whose KV is copied to somewhere else as it grows: told of it by the engine, and waited for before its tokens
// are told, so that whoever goes on with it has no more than one of them to compute again.
//
//     request.follower = copies.follow(...);                   // answer_copies.hpp, cache_copies.hpp
//     co_await follower->covered(tokens);                      // before a token is told
#pragma once

#include "cokv/engine/sequence_sink.hpp"
#include "cokv/runtime/asio.hpp"

namespace cokv::cluster {

class answer_follower : public sequence_sink {
 public:
  // Every kind of cancellation ends the wait. Completes, without an error of its own, when so many tokens are copied, or the
  // copies' patience is over.
  virtual awaitable<void> covered(std::uint32_t tokens) = 0;
};

}  // namespace cokv::cluster

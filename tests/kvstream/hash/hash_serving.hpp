// Prompts computed by one worker and answered by another, whatever link their KV goes over: the least of disaggregated
// serving, with hash_model as the judge. A request is tried on a link of its own until its KV is there; then the answer
// is right, or the test fails. Pools are small, so that what a broken attempt left behind would meet the next one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/device.hpp"
#include "kvstream/hash/hash_model.hpp"

namespace cokv::test {

// Who has which block, kept beside the pools.
class block_ledger {
 public:
  bool take(const void* pool, std::uint32_t block) { return held_.insert({pool, block}).second; }
  void give_back(const void* pool, std::uint32_t block) { held_.erase({pool, block}); }
  std::size_t held() const { return held_.size(); }

 private:
  std::set<std::pair<const void*, std::uint32_t>> held_;
};

// A worker of either kind: what carries its links, and where its KV lies.
struct hash_place {
  std::string listen, connect = {};  // to where it turned out to listen, if empty
  link_options link = {};
  std::function<device(const asio::any_io_executor&)> gpu = {};  // whose memory KV lies in; none: the host's
  std::optional<device_staging> stage = {};                      // of that device
  memory_kind kind = memory_kind::device;
  bool packed = true;  // some transfers go through staging of the host
  std::uint32_t blocks = 40;
};

// What they ask and answer, and what became of it.
struct hash_serving {
  hash_serving(geometry g, std::uint64_t seed) : model(std::move(g)), seed(seed) {}

  hash_model model;
  std::uint64_t seed;
  int requests = 4;
  int attempts = 4;
  std::uint32_t most_prompt = 24, answer = 4;  // tokens
  bool breaks = false;                         // who computes breaks links now and then

  block_ledger ledger;
  std::size_t answered = 0, given_up = 0, failed_attempts = 0, pushed = 0, pulled = 0, leaked = 0;
  std::set<std::string> errors;
  std::string url;                   // where prompts are computed
  std::function<void()> close_door;  // there, while it lives
};

// Computes prompts for whoever connects until close_door().
awaitable<void> hash_prefill(hash_serving& s, hash_place at);
// Asks for `requests` prompts at once, and answers them.
awaitable<void> hash_decode(hash_serving& s, hash_place at);
// close_door() for a worker of another process.
awaitable<void> hash_stop(hash_place at);
// Both workers on one context, and what must hold at their end.
awaitable<void> hash_both(hash_serving& s, hash_place prefill, hash_place decode);
void check_end(const hash_serving& s);

}  // namespace cokv::test

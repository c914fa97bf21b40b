// An engine with the toy model in virtual time, and what its answers have to be.
#pragma once

#include <doctest/doctest.h>

#include <optional>

#include "cokv/engine/engine.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "engine/toy_model.hpp"
#include "support/co_test.hpp"
#include "support/fault_store.hpp"

namespace cokv::test {

using namespace std::chrono_literals;

// What the model says after a prompt, computed without an engine: ends with an end token, or after n.
inline std::vector<token_id> toy_answer(const std::vector<token_id>& prompt, std::uint32_t n,
                                        const std::vector<token_id>& eos = {}) {
  std::uint64_t seen[toy_model::layers];
  for (std::uint32_t l = 0; l < toy_model::layers; ++l) seen[l] = l;
  std::vector<token_id> out;
  for (std::size_t p = 0; out.size() < n; ++p) {
    const auto token = p < prompt.size() ? prompt[p] : out[p - prompt.size()];
    auto hidden = toy_model::mix(static_cast<std::uint64_t>(token) + 1, p);
    for (std::uint32_t l = 0; l < toy_model::layers; ++l) {
      const auto k = toy_model::mix(hidden, 2 * l + 1);
      seen[l] = toy_model::mix(toy_model::mix(seen[l], k), toy_model::mix(k, 3));
      hidden = toy_model::mix(hidden, seen[l]);
    }
    if (p + 1 < prompt.size()) continue;
    out.push_back(static_cast<token_id>(toy_model::mix(hidden, 7) % toy_model::vocab));
    if (std::ranges::find(eos, out.back()) != eos.end()) break;
  }
  return out;
}

// The KV of a prompt's tokens [first, end), as another worker's model computes it; segment(layer, i) is where the layer's part
// of the prompt's ith block lies.
template <class Segment>
void fill_toy_kv(std::uint32_t bt, const Segment& segment_at, const std::vector<token_id>& prompt, std::uint32_t first,
                 std::uint32_t end) {
  std::uint64_t seen[toy_model::layers];
  for (std::uint32_t l = 0; l < toy_model::layers; ++l) seen[l] = l;
  for (std::uint32_t p = 0; p < end; ++p) {
    auto hidden = toy_model::mix(static_cast<std::uint64_t>(prompt.at(p)) + 1, p);
    for (std::uint32_t l = 0; l < toy_model::layers; ++l) {
      const std::uint64_t k = toy_model::mix(hidden, 2 * l + 1), v = toy_model::mix(k, 3);
      if (p >= first) {
        std::byte* segment = segment_at(l, p / bt);
        std::memcpy(segment + p % bt * 8, &k, 8);
        std::memcpy(segment + (bt + p % bt) * 8, &v, 8);
      }
      seen[l] = toy_model::mix(toy_model::mix(seen[l], k), v);
      hidden = toy_model::mix(hidden, seen[l]);
    }
  }
}

// Into the blocks of a pool that are to hold it.
inline void fill_toy_kv(const kv_pool& pool, const std::vector<block_index>& blocks,
                        const std::vector<token_id>& prompt, std::uint32_t first, std::uint32_t end) {
  fill_toy_kv(
      pool.shape().block_tokens(),
      [&](std::uint32_t l, std::uint32_t b) { return pool.memory().data() + pool.offset(l, blocks.at(b)); }, prompt,
      first, end);
}

// Into a room, wherever that is.
inline void fill_toy_kv(const kv_room& room, const std::vector<token_id>& prompt, std::uint32_t first,
                        std::uint32_t end) {
  const auto g = room.memory.layout().shape();
  fill_toy_kv(
      g.block_tokens(),
      [&](std::uint32_t l, std::uint32_t b) {
        const auto pieces = room.memory.pieces(slice(g, {l, 1}, {room.blocks.at(b)})).value();
        REQUIRE(pieces.size() == 1);
        return pieces[0].data();
      },
      prompt, first, end);
}

inline std::vector<token_id> toy_prompt(std::size_t n, std::uint64_t seed) {
  std::vector<token_id> t;
  for (std::size_t i = 0; i < n; ++i) t.push_back(static_cast<token_id>(toy_model::mix(seed, i) % toy_model::vocab));
  return t;
}

inline generation_request toy_request(std::vector<token_id> prompt, std::uint32_t n) {
  return {.prompt = std::move(prompt), .max_tokens = n, .sampling = {.temperature = 0}};
}

struct toy_engine {
  toy_engine(asio::any_io_executor ex, engine_options o, toy_price price = {}, std::vector<token_id> eos = {})
      : run(ex, open_device(ex, "sim:h200").value(), std::make_shared<toy_model>(price, std::move(eos)), std::nullopt,
            pinned(std::move(o))) {}

  static engine_options pinned(engine_options o) {
    o.kv_memory = memory_kind::pinned;
    if (o.kv_blocks == 0) o.kv_blocks = 512;
    return o;
  }
  awaitable<void> drain() { co_await run.async_drain(asio::as_tuple(asio::deferred)); }

  engine run;
};

struct toy_outcome {
  std::vector<token_id> tokens;
  std::vector<time_point> at;  // of each
  error_code ended;
  generation_report report;
};

inline awaitable<toy_outcome> read_all(generation g) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  toy_outcome out;
  for (;;) {
    auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
    if (ec) {
      out.ended = ec;
      break;
    }
    out.tokens.push_back(piece.token);
    out.at.push_back(time.now());
  }
  out.report = g.report();
  co_return out;
}

inline awaitable<void> wait_for(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

// The same, given up after `patience` where there is one.
inline awaitable<toy_outcome> read_for(generation g, duration patience) {
  if (patience.count() > 0) {
    co_await wait_for(patience);
    g.cancel();
  }
  co_return co_await read_all(std::move(g));
}

inline kv_tier toy_tier(std::string name, std::shared_ptr<store> blocks) {
  return {.name = std::move(name),
          .blocks = std::move(blocks),
          .lookup_budget = 50ms,
          .load_budget = 1s,
          .save_budget = 1s};
}

}  // namespace cokv::test

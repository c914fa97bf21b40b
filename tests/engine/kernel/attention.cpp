#include "kernel/cpu/attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <tuple>

#include "engine/kernel/paged_kv.hpp"
#include "kernel/cpu/attention_job.hpp"
#include "kernel/cpu/rows.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

TEST_CASE("attention over paged KV equals softmax in double precision and reads nothing but its tokens") {
  each_isa([](isa level) {
    INFO("isa ", to_string(level));
    for (auto type : {dtype::f32, dtype::bf16})
      for (auto [kv_heads, group, dim] : {std::tuple{2u, 1u, 32u}, {1u, 3u, 20u}, {2u, 8u, 64u}, {1u, 20u, 8u}})
        for (auto block_tokens : {8u, 16u, 32u, 5u}) {
          paged_sequence p(type, kv_heads, dim, block_tokens, 75);
          const auto heads = kv_heads * group;
          for (auto [start, count] : {std::pair{0u, 1u}, {0u, 40u}, {33u, 42u}, {74u, 1u}, {15u, 2u}}) {
            p.write(start + count);
            const std::size_t stride = heads * dim + 12;  // queries are part of a wider row
            auto q = random_floats(count * stride, start + count, 2);
            auto out = poisoned(std::size_t{count} * heads * dim);
            sequence_rows rows{p.blocks.data(), start, count, 0};
            std::vector<float> slopes;  // of every other case
            if (block_tokens % 16 == 0) slopes = random_floats(heads, 4);
            for (auto& s : slopes) s = std::abs(s);
            attention(q.data(), stride, out.data(), dtype::f32, heads, p.kv, {&rows, 1}, slopes);
            const bool tiles = has_attention_tiles(type, dim);
            if (tiles)  // the unit takes queries, scaled, as bf16
              for (const float scale = 1 / std::sqrt(float(dim)); auto& x : q) x = to_float(to_bf16(x * scale)) / scale;
            double worst = 0;
            for (std::uint32_t r = 0; r < count; ++r) {
              auto want = p.exact(q.data() + r * stride, start + r, heads, slopes);
              for (std::size_t i = 0; i < want.size(); ++i) {
                auto off = std::abs(out[r * want.size() + i] - want[i]);
                worst = off <= worst ? worst : off;  // a NaN counts as worse
              }
            }
            INFO(to_string(type), " dim ", dim, " group ", group, " block ", block_tokens, " start ", start);
            CHECK(worst < (tiles ? 1.0 / 512 : 2e-6));  // softmax's weights rounded to 9 bits, of values up to 1
          }
        }
  });
}

TEST_CASE("attention gives a token the same bits however its sequence is cut, batched and paged") {
  const std::uint32_t tokens = 130, heads = 4;
  for (auto [type, dim] : {std::pair{dtype::f32, 32u}, {dtype::bf16, 64u}, {dtype::bf16, 24u}}) {
    auto q = random_floats(tokens * heads * dim, 9, 2);
    std::vector<float> first;
    for (auto block_tokens : {16u, 8u, 32u}) {
      paged_sequence p(type, 2, dim, block_tokens, tokens);
      p.write(tokens);
      for (auto step : {tokens, 1u, 7u, 16u, 64u}) {
        auto out = poisoned(q.size());
        for (std::uint32_t at = 0; at < tokens; at += step) {
          const auto count = std::min(step, tokens - at);
          std::vector<sequence_rows> rows{{p.blocks.data(), at, count, at}};
          if (at == 0 && step == 7)  // with another sequence in the same call
            rows.push_back({p.blocks.data(), 50, 20, 50});
          attention(q.data(), heads * dim, out.data(), dtype::f32, heads, p.kv, rows);
        }
        if (first.empty()) first = out;
        INFO(to_string(type), " dim ", dim, " block ", block_tokens, " step ", step);
        CHECK(std::memcmp(out.data(), first.data(), out.size() * sizeof(float)) == 0);
      }
    }
  }
}

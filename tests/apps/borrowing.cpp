// How many layers of a worker's KV another one keeps.
#include "serve/borrowing.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"

using namespace cokv;
using serve::borrowing;

namespace {

// Llama 2 70B's layers and heads, and a pool of 40 GB or so.
const borrowing::need large{.shape = geometry::attention(64, 8, 128, dtype::bf16, 16),
                            .blocks = 40'000'000'000 / (64 * 64 * 1024)};
constexpr std::uint64_t plenty = std::uint64_t{1} << 40;

}  // namespace

TEST_CASE("borrowing: as many layers as hide, and blocks for what that leaves of the worker's own memory") {
  // Two A100s as they were measured: 17 percent, 11 layers (lending_bound.hpp).
  const auto p = *borrowing::decide(large, {.link = 270e9, .memory = 1560e9}, plenty, 0);
  CHECK(p.layers == 11);
  CHECK(p.blocks == large.blocks * 64ull / (64 - 11 + 2));
  CHECK(p.bytes == p.blocks * 11ull * large.shape.segment_bytes(0));
  // Its own share and the landings are no more than it had.
  CHECK((64 - 11 + 2) * large.shape.segment_bytes(0) * p.blocks <= large.shape.block_bytes() * large.blocks);

  auto with_weights = large;
  with_weights.weight_bytes = 140e9 / 4;
  CHECK(borrowing::decide(with_weights, {.link = 270e9, .memory = 1560e9}, plenty, 0)->layers > 11);
  const borrowing::rates late{.link = 270e9, .memory = 1560e9, .overhead = std::chrono::milliseconds(5)};
  CHECK(borrowing::decide(large, late, plenty, 0)->layers < 11);
}

TEST_CASE("borrowing: no more than the lender has, and nothing where it would cost memory") {
  const borrowing::rates fast{.link = 270e9, .memory = 1560e9};
  const auto five = *borrowing::decide(large, fast, plenty, 5);
  CHECK(five.layers == 5);
  CHECK(borrowing::decide(large, fast, five.bytes, 0)->layers == 5);
  CHECK(borrowing::decide(large, fast, five.bytes - 1, 0)->layers == 4);
  CHECK(borrowing::decide(large, fast, 1 << 20, 0).error() == errc::out_of_memory);
  CHECK(borrowing::decide(large, {.link = 50e9, .memory = 1560e9}, plenty, 0)->layers == 0);  // two would hide
  CHECK(borrowing::decide(large, {.link = 80e9, .memory = 1560e9}, plenty, 0)->layers == 3);
}

TEST_CASE("borrowing: what somebody wants is what there is, or is refused") {
  const borrowing::rates slow{.link = 1e9, .memory = 1560e9};
  CHECK(borrowing::decide(large, slow, plenty, 63)->layers == 63);
  const auto one = *borrowing::decide(large, slow, plenty, 1);
  CHECK(one.layers == 1);
  CHECK(one.blocks < large.blocks);  // two landings for one layer
  CHECK(borrowing::decide(large, slow, one.bytes - 1, 1).error() == errc::out_of_memory);
  auto tiny = large;
  tiny.blocks = 1;
  CHECK_THROWS_AS(borrowing::decide(tiny, slow, plenty, 1), config_error);
  CHECK(borrowing::decide(tiny, {.link = 270e9, .memory = 1560e9}, plenty, 0)->blocks >= 1);
}

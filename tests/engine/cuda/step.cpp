// When is a step the replay of another? As its sequences grow, and are others, but are as many, for hundreds of steps.
#include "model/cuda/cuda_step.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace cokv;

namespace {

constexpr std::uint32_t block_tokens = 16;

model_config half_a_billion() {
  model_config c;
  c.hidden = 896, c.layers = 24, c.heads = 14, c.kv_heads = 2, c.head_dim = 64, c.intermediate = 4864;
  c.rotary_dims = 64, c.embedding_dim = c.hidden, c.vocab = 1000, c.max_positions = 32768;
  return c;
}

// Each sequence's next token, behind so many.
batch decoding(const std::vector<std::uint32_t>& contexts) {
  batch out;
  for (auto n : contexts) {
    batch_sequence s{
        .blocks = std::vector<block_index>(n / block_tokens + 1), .start = n, .tokens = {1}, .sample = true};
    out.sampled.push_back({std::make_shared<sampling_state>(sampling_state{.params = {.temperature = 0}}), n + 1});
    out.sequences.push_back(std::move(s));
  }
  return out;
}

struct shapes {
  asio::io_context context{1};
  device where = open_device(context.get_executor(), "cpu").value();
  model_config config = half_a_billion();
  cuda_step step;
  std::set<step_shape> seen;

  void add(const std::vector<std::uint32_t>& contexts) {
    REQUIRE(!step.prepare(where, config, dtype::bf16, {decoding(contexts), {}, config, dtype::bf16, {}}));
    seen.insert(
        step.shape({nullptr, 1, nullptr, kernel::gpu::divisor(block_tokens), config.kv_heads, config.head_dim}));
  }
};

}  // namespace

TEST_CASE("cuda step: four that grow by 256 tokens have few shapes, as long as each other or not") {
  shapes together, apart;
  together.add({4000, 4000, 4000, 4000}), apart.add({4000, 4000, 4000, 4000});  // room for all that comes
  together.seen.clear(), apart.seen.clear();
  for (std::uint32_t i = 0; i < 256; ++i) {
    const auto n = 2048 + i;
    together.add({n, n, n, n});
    apart.add({n, n + 61, n + 130, n + 199});
  }
  CHECK(together.seen.size() <= 3);
  CHECK(apart.seen.size() <= 3);
}

TEST_CASE("cuda step: sequences that take turns, each at its own length, have the shapes of those before") {
  shapes all;
  all.add({4000, 4000, 4000, 4000});
  all.seen.clear();
  std::vector<std::uint32_t> length(8, 2049);
  for (std::uint32_t turn = 0; turn < 32; ++turn)
    for (std::uint32_t i = 0; i < 32; ++i) {
      std::vector<std::uint32_t> now;
      for (std::uint32_t k = 0; k < 4; ++k) now.push_back(++length[(turn + k) % length.size()]);
      all.add(now);
    }
  CHECK(all.seen.size() <= 6);
}

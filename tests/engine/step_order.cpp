// What workers of a model say of steps: as it was written, or refused; never a block, token or length that there is none of.
#include "stage/step_order.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <random>

#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"

using namespace cokv;
using namespace cokv::detail;

namespace {

constexpr std::uint32_t vocab = 50;
const stage_sizes sizes{.kv_blocks = 10,
                        .block_tokens = 4,
                        .max_batched_tokens = 16,
                        .max_running = 4,
                        .max_requests = 8,
                        .max_sequence = 32,
                        .microbatches = 2,
                        .copies = 1,
                        .host_blocks = 20,
                        .slots = 10};

std::shared_ptr<sampling_state> some_state() {
  auto s = std::make_shared<sampling_state>();
  s->params = {.temperature = 0.5f,
               .top_k = 7,
               .top_p = 0.75f,
               .min_p = 0.125f,
               .repetition_penalty = 1.5f,
               .presence_penalty = -0.25f,
               .frequency_penalty = 0.5f,
               .logit_bias = {{3, 1.5f}, {4, -std::numeric_limits<float>::infinity()}},
               .seed = 1234567890123};
  s->logprobs = 0;
  s->first = 5;
  s->prompt = {1, 2, 3, 4, 5};
  s->answer = {6};
  return s;
}

step_order some_order() {
  step_order o{.number = 9, .sequences = {}, .sampled = {}, .over = {77, 78}};
  o.sequences.push_back({.blocks = {9, 0}, .start = 3, .tokens = {1, 49, 0, 7}, .sample = false});
  o.sequences.push_back({.blocks = {4, 5, 6}, .start = 11, .tokens = {8}, .sample = true});
  o.sampled.push_back({12, 12, some_state()});
  o.told.push_back({.sequence = 0, .number = 0xffff'ffff'ffffu, .tokens = {4, 3}});
  o.copied = {{.sequence = 0, .id = 3, .room = 0}, {.sequence = 1, .id = 5, .room = 32}};
  o.forgotten = {2};
  o.refreshed = {8, 1};
  return o;
}

swap_order some_swap() { return {.number = 7, .out = true, .device = {9, 0, 3}, .host = {19, 2, 4}}; }

}  // namespace

TEST_CASE("step order: comes back as it was written") {
  const auto back = decode_order(encode(some_order()), sizes, vocab);
  REQUIRE(back.has_value());
  CHECK(back->number == 9);
  CHECK(back->over == std::vector<request_id>{77, 78});
  REQUIRE(back->sequences.size() == 2);
  CHECK(back->sequences[0].blocks == std::vector<block_index>{9, 0});
  CHECK(back->sequences[0].start == 3);
  CHECK(back->sequences[0].tokens == std::vector<token_id>{1, 49, 0, 7});
  CHECK(!back->sequences[0].sample);
  CHECK(back->sequences[1].sample);
  REQUIRE(back->told.size() == 1);
  CHECK(back->told[0].sequence == 0);
  CHECK(back->told[0].number == 0xffff'ffff'ffffu);
  CHECK(back->told[0].tokens == index_range{4, 3});
  REQUIRE(back->copied.size() == 2);
  CHECK(back->copied[1].sequence == 1);
  CHECK(back->copied[1].id == 5);
  CHECK(back->copied[1].room == 32);
  CHECK(back->forgotten == std::vector<copy_id>{2});
  CHECK(back->refreshed == std::vector<block_index>{8, 1});
  REQUIRE(back->sampled.size() == 1);
  CHECK(back->sampled[0].id == 12);
  CHECK(back->sampled[0].position == 12);
  const auto told = some_state();
  const auto &got = *back->sampled[0].begins, &want = *told;
  CHECK(got.params.temperature == want.params.temperature);
  CHECK(got.params.top_k == want.params.top_k);
  CHECK(got.params.top_p == want.params.top_p);
  CHECK(got.params.min_p == want.params.min_p);
  CHECK(got.params.repetition_penalty == want.params.repetition_penalty);
  CHECK(got.params.presence_penalty == want.params.presence_penalty);
  CHECK(got.params.frequency_penalty == want.params.frequency_penalty);
  CHECK(got.params.seed == want.params.seed);
  REQUIRE(got.params.logit_bias.size() == 2);
  CHECK(got.params.logit_bias[1].token == 4);
  CHECK(got.params.logit_bias[1].bias == want.params.logit_bias[1].bias);
  CHECK(got.logprobs == want.logprobs);
  CHECK(got.first == 5);
  CHECK(got.prompt == want.prompt);
  CHECK(got.answer == want.answer);

  auto known = some_order();
  known.sampled[0].begins = nullptr;
  known.over.clear();
  CHECK(decode_order(encode(known), sizes, vocab)->sampled[0].begins == nullptr);
}

TEST_CASE("step order and outcome: their bytes are the protocol's") {
  step_outcome said{.number = 9, .sampled = {}};
  said.sampled.push_back({.token = token_id{7}, .logprobs = token_logprobs{-0.5f, {{7, -0.5f}, {9, -1.5f}}}});
  CHECK(to_hex(encode(some_order())) == golden_hex("step order"));
  CHECK(to_hex(encode(said)) == golden_hex("step outcome"));
  CHECK(to_hex(encode(some_swap())) == golden_hex("swap order"));
  CHECK(to_hex(encode(swap_outcome{7, errc::device_failed})) == golden_hex("swap outcome"));
}

TEST_CASE("step order: what there is none of is refused") {
  const auto refused = [](auto change) {
    auto o = some_order();
    change(o);
    CHECK(decode_order(encode(o), sizes, vocab).error() == errc::protocol);
  };
  refused([](step_order& o) { o.sequences[0].blocks[0] = 10; });
  refused([](step_order& o) { o.sequences[0].tokens[0] = 50; });
  refused([](step_order& o) { o.sequences[0].tokens[0] = -1; });
  refused([](step_order& o) { o.sequences[0].tokens.clear(); });
  refused([](step_order& o) { o.sequences[0].start = 5; });               // beyond its blocks
  refused([](step_order& o) { o.sequences[0].start = 0xffffffff; });      // and beyond every number
  refused([](step_order& o) { o.sequences[0].blocks.assign(10, 1); });    // more than a sequence has
  refused([](step_order& o) { o.sequences[0].tokens.assign(17, 1); });    // more than a step has
  refused([](step_order& o) { o.sequences.resize(5, o.sequences[1]); });  // more requests than a step has
  refused([](step_order& o) { o.sequences.clear(); });
  refused([](step_order& o) { o.sampled.push_back({13, 3}); });  // more than sample
  refused([](step_order& o) { o.copied[0].sequence = 2; });
  refused([](step_order& o) { o.copied[0].id = 0; });
  refused([](step_order& o) { o.copied[0].room = 33; });  // more than a sequence has
  refused([](step_order& o) { o.copied[1].sequence = 0; });
  refused([](step_order& o) { o.copied[1].id = 3; });
  auto none = sizes;
  none.copies = 0;
  CHECK(decode_order(encode(some_order()), none, vocab).error() == errc::protocol);
  refused([](step_order& o) { o.refreshed[0] = 10; });
  refused([](step_order& o) { o.refreshed.assign(11, 1); });
  auto few = sizes;
  few.slots = 8;  // of which a step has half, and this one five blocks
  CHECK(decode_order(encode(some_order()), few, vocab).error() == errc::protocol);
  few.slots = 0;
  CHECK(decode_order(encode(some_order()), few, vocab).error() == errc::protocol);
  auto shared = some_order();
  shared.refreshed.clear();
  CHECK(decode_order(encode(shared), few, vocab).has_value());
  few.slots = 8;
  shared.sequences[1].blocks[0] = 9;  // blocks that two begin with count once
  CHECK(decode_order(encode(shared), few, vocab).has_value());
  refused([](step_order& o) { o.sampled[0].position = 33; });
  refused([](step_order& o) { o.told[0].sequence = 2; });
  refused([](step_order& o) { o.told[0].tokens = {3, 0}; });
  refused([](step_order& o) { o.told[0].tokens = {2, 3}; });           // tokens of an earlier step
  refused([](step_order& o) { o.told[0].tokens = {4, 4}; });           // beyond those of this one
  refused([](step_order& o) { o.told[0].tokens = {4, 0xffffffff}; });  // and beyond every number
  refused([](step_order& o) { o.told.resize(5, o.told[0]); });
  refused([](step_order& o) { o.sampled[0].begins->params.top_p = 2; });
  refused([](step_order& o) { o.sampled[0].begins->params.temperature = std::numeric_limits<float>::quiet_NaN(); });
  refused([](step_order& o) { o.sampled[0].begins->params.logit_bias[0].token = 50; });
  refused([](step_order& o) { o.sampled[0].begins->prompt[0] = 50; });
  refused([](step_order& o) { o.sampled[0].begins->answer.assign(33, 1); });
  refused([](step_order& o) { o.sampled[0].begins->first = 33; });
  refused([](step_order& o) { o.sampled[0].begins->logprobs = 51; });
}

TEST_CASE(
    "step order and outcome: cut anywhere they are refused; damaged anywhere they are read within what there is") {
  step_outcome said{.number = 3, .sampled = {}};
  said.sampled.push_back({.token = token_id{7}, .logprobs = token_logprobs{-0.5f, {{7, -0.5f}, {9, -1.5f}}}});
  said.sampled.push_back({.token = errc::invalid_argument});
  const auto order = encode(some_order()), outcome = encode(said);
  const auto back = decode_outcome(outcome, 2, vocab);
  REQUIRE(back.has_value());
  CHECK(back->number == 3);
  CHECK(*back->sampled[0].token == 7);
  CHECK(back->sampled[0].logprobs->chosen == -0.5f);
  CHECK(back->sampled[0].logprobs->top.at(1).token == 9);
  CHECK(back->sampled[1].token.error() == errc::invalid_argument);
  CHECK(!back->sampled[1].logprobs);
  CHECK(decode_outcome(outcome, 1, vocab).error() == errc::protocol);
  CHECK(decode_outcome(outcome, 3, vocab).error() == errc::protocol);
  CHECK(decode_outcome(outcome, 2, 9).error() == errc::protocol);
  for (std::size_t n = 0; n < order.size(); ++n)
    CHECK(decode_order(std::span(order).first(n), sizes, vocab).error() == errc::protocol);
  for (std::size_t n = 0; n < outcome.size(); ++n)
    CHECK(decode_outcome(std::span(outcome).first(n), 2, vocab).error() == errc::protocol);
  auto more = order;
  more.push_back({});
  CHECK(decode_order(more, sizes, vocab).error() == errc::protocol);

  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    auto damaged = order;
    for (auto n = 1 + random() % 3; n > 0; --n) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    const auto got = decode_order(damaged, sizes, vocab);
    if (!got) continue;
    for (auto& s : got->sequences) {
      CHECK(s.start + s.tokens.size() <= s.blocks.size() * sizes.block_tokens);
      for (auto b : s.blocks) CHECK(b < sizes.kv_blocks);
      for (auto t : s.tokens) CHECK((t >= 0 && t < token_id{vocab}));
    }
    auto hurt = outcome;
    hurt[random() % hurt.size()] = static_cast<std::byte>(random());
    (void)decode_outcome(hurt, 2, vocab);
  }
}

TEST_CASE(
    "swap order and outcome: come back as they were written; what there is none of, cut and damaged ones are refused") {
  const auto order = encode(some_swap()), good = encode(swap_outcome{8, {}}),
             bad = encode(swap_outcome{9, errc::device_failed});
  const auto back = decode_swap(order, sizes);
  REQUIRE(back.has_value());
  CHECK(back->number == 7);
  CHECK(back->out);
  CHECK(back->device == std::vector<block_index>{9, 0, 3});
  CHECK(back->host == std::vector<block_index>{19, 2, 4});
  CHECK(decode_swap_outcome(good)->number == 8);
  CHECK(!decode_swap_outcome(good)->why);
  CHECK(decode_swap_outcome(bad)->why);
  CHECK(is_swap(order));
  CHECK(is_swap(good));
  CHECK(!is_swap(encode(some_order())));
  CHECK(!is_swap({}));
  CHECK(decode_order(order, sizes, vocab).error() == errc::protocol);
  CHECK(decode_swap(good, sizes).error() == errc::protocol);
  CHECK(decode_swap_outcome(order).error() == errc::protocol);

  const auto refused = [](auto change) {
    auto o = some_swap();
    change(o);
    CHECK(decode_swap(encode(o), sizes).error() == errc::protocol);
  };
  refused([](swap_order& o) { o.device[1] = 10; });
  refused([](swap_order& o) { o.host[1] = 20; });
  refused([](swap_order& o) { o.host.pop_back(); });
  refused([](swap_order& o) { o.device.clear(), o.host.clear(); });
  refused([](swap_order& o) { o.device.assign(10, 1), o.host.assign(10, 1); });  // more than a sequence has
  auto none = sizes;
  none.host_blocks = 0;
  CHECK(decode_swap(order, none).error() == errc::protocol);
  for (std::size_t n = 0; n < order.size(); ++n)
    CHECK(decode_swap(std::span(order).first(n), sizes).error() == errc::protocol);
  for (std::size_t n = 0; n < bad.size(); ++n)
    CHECK(decode_swap_outcome(std::span(bad).first(n)).error() == errc::protocol);

  std::mt19937_64 random(1);
  for (int i = 0; i < 5000; ++i) {
    auto damaged = order;
    for (auto n = 1 + random() % 3; n > 0; --n) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    const auto got = decode_swap(damaged, sizes);
    if (!got) continue;
    CHECK(got->device.size() == got->host.size());
    for (auto b : got->device) CHECK(b < sizes.kv_blocks);
    for (auto b : got->host) CHECK(b < sizes.host_blocks);
  }
}

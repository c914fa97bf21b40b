// What a follower is told of a sequence: every token whose KV is there, once, as what it is, and with its bytes there.
#include <random>

#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/deadline.hpp"
#include "engine/arrival_by_hand.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t bt = 16;

class judge final : public sequence_sink {
 public:
  explicit judge(const kv_pool& pool) : pool_(&pool) {}

  void computed(index_range tokens, std::span<const token_id> what, sequence_blocks where) override {
    CHECK(tokens.first == told.size());
    CHECK(tokens.count == what.size());
    CHECK(tokens.count > 0);
    told.insert(told.end(), what.begin(), what.end());
    ++calls;
    const auto first = tokens.first / bt;
    REQUIRE(where.blocks.size() == (told.size() + bt - 1) / bt - first);
    CHECK(where.held.size() == where.blocks.size());
    slice all(pool_->shape(), {0, toy_model::layers}, where.blocks);
    all.tokens({tokens.first - first * bt, tokens.count});
    CHECK(!where.memory.check(all));
    // As another worker's model computes it.
    kv_pool right(pool_->shape(), static_cast<std::uint32_t>(told.size() / bt) + 1);
    std::vector<block_index> blocks(right.blocks());
    for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    fill_toy_kv(right, blocks, told, 0, static_cast<std::uint32_t>(told.size()));
    for (std::uint32_t l = 0; l < toy_model::layers; ++l)
      for (auto p = tokens.first; p < tokens.end(); ++p)
        for (std::uint32_t plane : {0u, 1u}) {
          const auto at = (plane * bt + p % bt) * 8;
          wrong += std::memcmp(pool_->memory().data() + pool_->offset(l, where.blocks[p / bt - first]) + at,
                               right.memory().data() + right.offset(l, blocks[p / bt]) + at, 8) != 0;
        }
  }
  void preempted() override {
    CHECK(!told.empty());
    told.clear();
    ++preemptions;
  }

  std::vector<token_id> told;
  std::size_t calls = 0, wrong = 0, preemptions = 0;

 private:
  const kv_pool* pool_;
};

// Reads KV, slowly: its buffers keep blocks from being handed out, whoever has them no more.
class slow_reader final : public sequence_sink {
 public:
  void computed(index_range, std::span<const token_id>, sequence_blocks where) override {
    for (auto b : where.blocks) {
      slice all(where.memory.layout().shape(), {0, toy_model::layers}, std::vector{b});
      for (auto& piece : where.memory.pieces(all).value()) reading.push_back(std::move(piece));
    }
  }
  void preempted() override { ++preemptions; }

  std::vector<buffer> reading;
  std::size_t preemptions = 0;
};

std::vector<token_id> all_but_last(std::vector<token_id> prompt, const std::vector<token_id>& answer) {
  prompt.insert(prompt.end(), answer.begin(), answer.end() - 1);
  return prompt;
}

void once(const co_body& body) { co_test(body, {.real = false, .seeds = 1}); }

}  // namespace

TEST_CASE("sequence_sink: of a prompt in chunks and an answer every token is told with its KV, but for the last") {
  for (bool ahead : {false, true})
    for (std::uint32_t budget : {7u, 16u, 1000u})
      once([&](asio::any_io_executor ex) -> awaitable<void> {
        toy_engine e(ex, {.max_batched_tokens = budget, .async_scheduling = ahead});
        const auto prompt = toy_prompt(50, 1);
        for (int round = 0; round < 2; ++round) {  // the second finds blocks of the first
          auto told = std::make_shared<judge>(e.run.pool());
          auto r = toy_request(prompt, 30);
          r.follower = told;
          const auto got = co_await read_all(e.run.submit(std::move(r)).value());
          CHECK(got.tokens == toy_answer(prompt, 30));
          CHECK(told->told == all_but_last(prompt, got.tokens));
          CHECK(told->wrong == 0);
          CHECK(told->calls == (round == 0 ? (50 + budget - 1) / budget : 2) + 29);
        }
        co_await e.drain();
        CHECK(e.run.counters().blocks_in_use == 0);
      });
}

TEST_CASE("sequence_sink: what came from elsewhere is told before what the first step computes") {
  for (std::optional<std::uint32_t> there : {std::optional<std::uint32_t>(), {20u}})
    once([&](asio::any_io_executor ex) -> awaitable<void> {
      toy_engine e(ex, {});
      const auto prompt = toy_prompt(50, 1);
      auto told = std::make_shared<judge>(e.run.pool());
      auto r = toy_request(prompt, 10);
      r.follower = told;
      auto both = e.run.receive(r, there);
      REQUIRE(both.has_value());
      co_await fill_room(e.run, both->second, prompt);
      CHECK(told->told.empty());
      if (!there) CHECK(!both->second.first(toy_next(prompt)));
      both->second.complete();
      const auto got = co_await read_all(std::move(both->first));
      CHECK(got.tokens == toy_answer(prompt, 10));
      CHECK(told->told == all_but_last(prompt, got.tokens));
      CHECK(told->calls == (there ? 11 : 10));
      CHECK(told->wrong == 0);
    });
}

TEST_CASE("sequence_sink: a preempted sequence is told from its beginning, also where it comes back from a tier") {
  for (bool tier : {false, true})
    for (bool ahead : {false, true})
      once([&](asio::any_io_executor ex) -> awaitable<void> {
        engine_options o{.kv_blocks = 12, .max_batched_tokens = 64, .async_scheduling = ahead};
        if (tier)
          o.tiers.push_back(
              toy_tier("memory", std::make_shared<memory_store>(ex, memory_store_options{.limit_bytes = 1 << 20})));
        toy_engine e(ex, o);
        std::vector<std::shared_ptr<judge>> told;
        std::vector<toy_outcome> got(4);
        (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (std::size_t i = 0; i < got.size(); ++i) {
            told.push_back(std::make_shared<judge>(e.run.pool()));
            auto r = toy_request(toy_prompt(20 + i, i), 40);
            r.follower = told.back();
            group.spawn([](generation g, toy_outcome& to) -> awaitable<void> { to = co_await read_all(std::move(g)); }(
                                                              e.run.submit(std::move(r)).value(), got[i]));
          }
          co_return;
        });
        std::size_t preemptions = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          CHECK(got[i].tokens == toy_answer(toy_prompt(20 + i, i), 40));
          CHECK(told[i]->told == all_but_last(toy_prompt(20 + i, i), got[i].tokens));
          CHECK(told[i]->wrong == 0);
          preemptions += told[i]->preemptions;
        }
        CHECK(preemptions > 0);
        CHECK(preemptions <= e.run.counters().preemptions);
      });
}

TEST_CASE(
    "sequence_sink: blocks of a preempted sequence that are still read are awaited, and taken when they are not") {
  for (bool ahead : {false, true})
    once([&](asio::any_io_executor ex) -> awaitable<void> {
      toy_engine e(ex, {.kv_blocks = 10, .async_scheduling = ahead});
      auto reads = std::make_shared<slow_reader>();
      const auto first = toy_prompt(40, 1), second = toy_prompt(40, 2);
      const auto asked = [&](const std::vector<token_id>& prompt) {
        auto r = toy_request(prompt, 100);
        r.follower = reads;
        return e.run.submit(std::move(r)).value();
      };
      auto one = asked(first), two = asked(second);
      auto& time = clock::of(ex);
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn(
            [&]() -> awaitable<void> { CHECK((co_await read_all(std::move(one))).tokens == toy_answer(first, 100)); });
        group.spawn(
            [&]() -> awaitable<void> { CHECK((co_await read_all(std::move(two))).tokens == toy_answer(second, 100)); });
        for (int i = 0; i < 100'000 && reads->preemptions == 0; ++i)
          co_await time.async_wait_for(std::chrono::microseconds(10));
        CHECK(reads->preemptions > 0);
        for (int i = 0; i < 100; ++i) co_await time.async_wait_for(std::chrono::milliseconds(1));
        const auto steps = e.run.counters().steps;
        co_await time.async_wait_for(std::chrono::seconds(1));
        CHECK(e.run.counters().steps == steps);  // nobody has room
        // Whoever read it is done, and nothing else happens.
        auto ended = co_await with_deadline(
            [&]() -> awaitable<void> {
              while (e.run.counters().steps == steps) {
                reads->reading.clear();
                co_await time.async_wait_for(std::chrono::milliseconds(1));
              }
            }(),
            std::chrono::seconds(10));
        CHECK(ended.has_value());
        for (int i = 0; i < 100'000 && e.run.counters().finished < 2; ++i) {
          reads->reading.clear();
          co_await time.async_wait_for(std::chrono::microseconds(100));
        }
      });
      CHECK(!v.error());
      co_await e.drain();
    });
}

TEST_CASE("sequence_sink: whatever is preempted for whom, what is told is there") {
  std::size_t preemptions = 0;
  for (bool ahead : {false, true})
    for (std::uint64_t seed = 1; seed <= 150; ++seed)
      once([&](asio::any_io_executor ex) -> awaitable<void> {
        std::mt19937_64 random(seed);
        const auto below = [&](std::uint64_t n) { return random() % n; };
        toy_engine e(ex, {.kv_blocks = static_cast<std::uint32_t>(10 + below(8)),
                          .max_batched_tokens = static_cast<std::uint32_t>(16 + below(48)),
                          .async_scheduling = ahead});
        std::vector<std::shared_ptr<judge>> told;
        std::vector<toy_outcome> got(12);
        std::vector<std::vector<token_id>> prompts;
        (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (auto& to : got) {
            // Some begin alike.
            auto prompt = toy_prompt(16 * below(4), below(2));
            const auto rest = toy_prompt(1 + below(50), 100 + below(1000));
            prompt.insert(prompt.end(), rest.begin(), rest.end());
            prompts.push_back(prompt);
            told.push_back(std::make_shared<judge>(e.run.pool()));
            auto r = toy_request(prompt, static_cast<std::uint32_t>(1 + below(40)));
            r.priority = static_cast<std::int32_t>(below(5)) - 2;
            r.follower = told.back();
            group.spawn([](generation g, toy_outcome& out) -> awaitable<void> {
              out = co_await read_all(std::move(g));
            }(e.run.submit(std::move(r)).value(), to));
            co_await wait_for(std::chrono::microseconds(below(2000)));
          }
        });
        for (std::size_t i = 0; i < got.size(); ++i) {
          CHECK(got[i].ended == asio::error::eof);
          // One that was preempted while its last step ran is not told again.
          const auto all = all_but_last(prompts[i], got[i].tokens);
          CHECK((told[i]->told == all || (ahead && told[i]->preemptions > 0)));
          CHECK(told[i]->told.size() <= all.size());
          CHECK(std::equal(told[i]->told.begin(), told[i]->told.end(), all.begin()));
          CHECK(told[i]->wrong == 0);
          preemptions += told[i]->preemptions;
        }
      });
  MESSAGE(preemptions, " sequences were told anew");
  CHECK(preemptions > 100);
}

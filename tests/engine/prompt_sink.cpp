// What a sink is told of a prompt's KV: every token once in every layer, and with its bytes there.
#include "cokv/kvstream/memory_store.hpp"
#include "engine/toy_engine.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// The bytes of a prompt's KV, as the model computes it.
std::vector<std::byte> kv_bytes(const kv_pool& pool, const std::vector<block_index>& blocks, std::uint32_t layer,
                                index_range tokens) {
  const auto memory = pool.memory();
  const auto bt = pool.shape().block_tokens();
  std::vector<std::byte> out;
  for (auto p = tokens.first; p < tokens.end(); ++p)
    for (std::uint32_t plane : {0u, 1u}) {
      const auto* at = memory.data() + pool.offset(layer, blocks.at(p / bt)) + (plane * bt + p % bt) * 8;
      out.insert(out.end(), at, at + 8);
    }
  return out;
}

std::vector<std::byte> right_bytes(const std::vector<token_id>& prompt, std::uint32_t bt, std::uint32_t layer,
                                   index_range tokens) {
  kv_pool pool(toy_model().kv_geometry(bt), static_cast<std::uint32_t>(prompt.size() / bt) + 1);
  std::vector<block_index> blocks(pool.blocks());
  for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  fill_toy_kv(pool, blocks, prompt, 0, static_cast<std::uint32_t>(prompt.size()));
  return kv_bytes(pool, blocks, layer, tokens);
}

// Waits for each event on a coroutine of its own, and then looks at the bytes.
class looking_sink final : public prompt_sink, public std::enable_shared_from_this<looking_sink> {
 public:
  looking_sink(asio::any_io_executor ex, const kv_pool& pool, std::vector<token_id> prompt)
      : ex_(std::move(ex)), pool_(&pool), prompt_(std::move(prompt)) {}

  void begun(prompt_blocks where, std::uint32_t there) override {
    ++begins;
    there_ = there;
    const auto bt = pool_->shape().block_tokens();
    CHECK(where.blocks.size() == (prompt_.size() + bt - 1) / bt);
    CHECK(where.held.size() == where.blocks.size());
    CHECK(!where.memory.check(slice(pool_->shape(), {0, toy_model::layers}, where.blocks)));
    CHECK(there <= prompt_.size());
    for (auto& t : told_) t = there;
    where_ = std::make_shared<prompt_blocks>(std::move(where));
    for (std::uint32_t l = 0; l < toy_model::layers && there > 0; ++l) look(l, {0, there}, event());
    if (whole() && !keeps) where_.reset();
  }
  void preempted() override {
    CHECK(where_);
    CHECK(!whole());
    where_.reset();
    ++preemptions;
  }
  void layer(std::uint32_t layer, index_range tokens, event computed) override {
    REQUIRE(where_);
    CHECK(tokens.first == told_[layer]);
    CHECK(tokens.count > 0);
    told_[layer] = static_cast<std::uint32_t>(tokens.end());
    ++parts;
    look(layer, tokens, computed);
    if (whole() && !keeps) where_.reset();
  }

  bool whole() const {
    return begins > 0 && std::ranges::all_of(told_, [&](auto n) { return n == prompt_.size(); });
  }
  std::uint32_t there() const noexcept { return there_; }
  bool holds() const noexcept { return where_ != nullptr; }

  bool keeps = false;  // the blocks, to its end
  std::size_t begins = 0, preemptions = 0, parts = 0, looked = 0, failed = 0;

 private:
  void look(std::uint32_t layer, index_range tokens, event computed) {
    asio::co_spawn(
        ex_,
        [](std::shared_ptr<looking_sink> self, std::shared_ptr<prompt_blocks> where, std::uint32_t layer,
           index_range tokens, event computed) -> awaitable<void> {
          auto [ec] = co_await computed.async_wait(asio::as_tuple(asio::deferred));
          self->failed += static_cast<bool>(ec);
          if (ec) co_return;
          const auto bt = self->pool_->shape().block_tokens();
          CHECK(kv_bytes(*self->pool_, where->blocks, layer, tokens) == right_bytes(self->prompt_, bt, layer, tokens));
          ++self->looked;
        }(shared_from_this(), where_, layer, tokens, std::move(computed)),
        asio::detached);
  }

  asio::any_io_executor ex_;
  const kv_pool* pool_;
  std::vector<token_id> prompt_;
  std::shared_ptr<prompt_blocks> where_;
  std::uint32_t there_ = 0;
  std::uint32_t told_[toy_model::layers] = {};
};

struct asked {
  std::shared_ptr<looking_sink> sink;
  toy_outcome got;
};

awaitable<asked> ask(toy_engine& e, std::vector<token_id> prompt, std::uint32_t n = 1, bool keeps = false) {
  asked out{std::make_shared<looking_sink>(e.run.get_executor(), e.run.pool(), prompt), {}};
  out.sink->keeps = keeps;
  auto request = toy_request(prompt, n);
  request.sink = out.sink;
  out.got = co_await read_all(e.run.submit(std::move(request)).value());
  CHECK(out.got.tokens == toy_answer(prompt, n));
  CHECK(out.sink->whole());
  co_return out;
}

void once(const co_body& body) { co_test(body, {.real = false, .seeds = 1}); }

}  // namespace

TEST_CASE("prompt sink: told of every chunk in every layer, as it is enqueued") {
  for (bool ahead : {false, true})
    once([ahead](asio::any_io_executor ex) -> awaitable<void> {
      toy_engine e(ex, {.max_batched_tokens = 32, .async_scheduling = ahead});
      auto a = co_await ask(e, toy_prompt(100, 1), 3);
      co_await e.drain();
      CHECK(a.sink->begins == 1);
      CHECK(a.sink->there() == 0);
      CHECK(a.sink->parts == 4 * toy_model::layers);  // four chunks, and nothing of the answer
      CHECK(a.sink->looked == a.sink->parts);
    });
}

TEST_CASE("prompt sink: what the device had is there from the beginning") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    toy_engine e(ex, {});
    const auto prompt = toy_prompt(70, 1);
    co_await read_all(e.run.submit(toy_request(toy_prompt(48, 1), 1)).value());
    auto a = co_await ask(e, prompt);
    co_await e.drain();
    CHECK(a.sink->there() == 48);
    CHECK(a.sink->parts == toy_model::layers);
    CHECK(a.sink->looked == 2 * toy_model::layers);
  });
}

TEST_CASE("prompt sink: what a tier has is told when it is there, with what was computed behind it") {
  for (bool lost : {false, true})
    once([lost](asio::any_io_executor ex) -> awaitable<void> {
      auto host = std::make_shared<fault_store>(ex, 1);
      const auto prompt = toy_prompt(100, 1);
      {
        toy_engine before(ex, {.tiers = {toy_tier("host", host)}});
        co_await read_all(before.run.submit(toy_request(prompt, 1)).value());
        co_await before.drain();
      }
      if (lost) host->fault = {.damaged = 0.3};
      toy_engine e(ex, {.tiers = {toy_tier("host", host)}});
      auto a = co_await ask(e, prompt);
      co_await e.drain();
      CHECK(a.sink->begins == 1);
      if (!lost) CHECK(a.sink->there() == 100);
      if (!lost) CHECK(a.sink->parts == 0);
      CHECK(a.sink->looked == a.sink->parts + (a.sink->there() > 0) * toy_model::layers);
    });
}

TEST_CASE("prompt sink: its blocks stay as long as it holds them, and no longer") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    toy_engine e(ex, {});
    {
      auto a = co_await ask(e, toy_prompt(40, 1), 1, true);
      co_await e.drain();
      CHECK(e.run.counters().blocks_in_use == 3);
    }
    CHECK(e.run.counters().blocks_in_use == 0);
  });
}

TEST_CASE("prompt sink: one that is preempted in its middle is told again from its start") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    // An earlier one needs a block for every fourth token that it says.
    toy_engine e(ex, {.kv_blocks = 28, .block_tokens = 4, .max_batched_tokens = 9, .prefix_cache = false});
    const auto earlier = toy_prompt(3, 2), prompt = toy_prompt(100, 1);
    auto says = e.run.submit(toy_request(earlier, 40)).value();
    co_await wait_for(1ms);
    auto request = toy_request(prompt, 2);
    auto sink = std::make_shared<looking_sink>(ex, e.run.pool(), prompt);
    request.sink = sink;
    CHECK((co_await read_all(e.run.submit(std::move(request)).value())).tokens == toy_answer(prompt, 2));
    CHECK((co_await read_all(std::move(says))).tokens == toy_answer(earlier, 40));
    CHECK(sink->preemptions > 0);
    CHECK(sink->begins == sink->preemptions + 1);
    CHECK(sink->whole());
    co_await e.drain();
    CHECK(sink->looked == sink->parts);
    CHECK(e.run.counters().blocks_in_use == 0);
  });
}

TEST_CASE("prompt sink: one that is preempted tells all of it again, of other blocks; cancelled ones tell no more") {
  std::uint64_t again = 0, preempted = 0, cancelled = 0, part = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
        auto host = std::make_shared<fault_store>(ex, ctx.seed());
        if (ctx.chance(0.5)) host->fault = {.damaged = 0.05, .lost = 0.05, .slowest = 300us};
        const auto bt = static_cast<std::uint32_t>(4 << ctx.below(2));
        engine_options o{.kv_blocks = 130 / bt + static_cast<std::uint32_t>(ctx.below(16)),
                         .block_tokens = bt,
                         .max_batched_tokens = static_cast<std::uint32_t>(8 << ctx.below(3)),
                         .prefix_cache = ctx.chance(0.5),
                         .async_scheduling = ctx.chance(0.5)};
        if (ctx.chance(0.5)) o.tiers = {toy_tier("host", host)};
        toy_engine e(ex, o, {.layer = 100us, .token = 2us});
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (int i = 0; i < 12; ++i) {
            const auto prompt = toy_prompt(20 + ctx.below(80), ctx.below(6));
            const auto n = static_cast<std::uint32_t>(1 + ctx.below(20));
            auto request = toy_request(prompt, n);
            request.priority = static_cast<std::int32_t>(ctx.below(17)) - 8;
            auto sink = std::make_shared<looking_sink>(ex, e.run.pool(), prompt);
            request.sink = sink;
            const auto patience = ctx.chance(0.2) ? ctx.between(1ns, 10ms) : duration::zero();
            group.spawn([](generation g, std::shared_ptr<looking_sink> sink, std::vector<token_id> want,
                           duration patience, std::uint64_t& cancelled, std::uint64_t& again,
                           std::uint64_t& part) -> awaitable<void> {
              if (patience.count() > 0) {
                co_await wait_for(patience);
                g.cancel();
              }
              const auto got = co_await read_all(std::move(g));
              if (got.ended == asio::error::eof) {
                CHECK(got.tokens == want);
                CHECK(sink->whole());
              } else {
                ++cancelled;
                part += sink->begins > 0 && !sink->whole();
              }
              CHECK(sink->failed == 0);
              CHECK((sink->begins == 0 || sink->begins == sink->preemptions + (sink->holds() || sink->whole())));
              again += sink->begins > 1;
            }(e.run.submit(std::move(request)).value(), std::move(sink), toy_answer(prompt, n), patience, cancelled,
                                                again, part));
            if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 3ms));
          }
        });
        CHECK(static_cast<bool>(v));
        co_await e.drain();
        co_await wait_for(1s);  // those that look
        CHECK(e.run.counters().blocks_in_use == 0);
        preempted += e.run.counters().preemptions;
      },
      {.real = false, .seeds = 250});
  MESSAGE(preempted, " preempted, ", again, " told again, ", cancelled, " cancelled, ", part, " of them half told");
  CHECK(preempted >= enough(50));
  CHECK(again >= enough(2));
  CHECK(part >= enough(5));
}

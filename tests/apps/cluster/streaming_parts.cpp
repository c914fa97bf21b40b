// Prompts computed by a model in parts and decoded by one in other parts: whatever the two topologies, an answer is the model's or
// it ends with an error, and no block is left behind on either side.
#include "apps/cluster/streaming_parts.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const std::vector<topology> parts_shapes{topology(),     topology(2, 1), topology(4, 1),           topology(1, 2),
                                         topology(2, 2), topology(1, 3), topology(2, 1, 0, {0, 1})};

struct parts_tally {
  std::size_t right = 0, failed = 0, cancelled = 0, here_before = 0, there_before = 0, over = 0, lost = 0;
  std::uint64_t sent = 0;
  std::set<std::string> errors;
};

struct parts_plan {
  topology from = topology(), to = topology();
  engine_options prefill = {}, decode = {};
  int requests = 5, attempts = 1;
  bool impatient = false;
  double loses = 0;  // a side's links, beside a request
};

struct parts_bed {
  parts_bed(sim_context& c, const parts_plan& p, asio::any_io_executor prefill, asio::any_io_executor decode)
      : context(c),
        p(p),
        from(prefill, "sim:h200", "prefill", p.from, toy, pinned_kv(p.prefill), how),
        to(decode, "sim:h200", "decode", p.to, toy, pinned_kv(p.decode), how, [](std::uint32_t n) {
          const auto port = std::to_string(700 + n);
          return std::pair("tcp://0.0.0.0:" + port, "tcp://decode:" + port);
        }) {}

  static std::shared_ptr<model> toy(model_part part) {
    return std::make_shared<toy_model>(toy_price{.layer = 50us, .token = 4us}, std::vector<token_id>(),
                                       std::move(part));
  }

  awaitable<void> ask(task_group& workers, int number, parts_tally& t) {
    const auto prompt = toy_prompt(1 + context.below(100), context.below(3));
    const auto n = static_cast<std::uint32_t>(1 + context.below(20));
    const auto want = toy_answer(prompt, n);
    const auto patience = p.impatient && context.chance(0.4) ? context.between(1ns, 8ms) : duration::zero();
    for (int i = 0; i < p.attempts; ++i) {
      if (context.chance(p.loses)) co_await lose(workers, t);
      const auto got = co_await computed_elsewhere(from, to, toy_request(prompt, n), "r-" + std::to_string(number),
                                                   static_cast<std::uint32_t>(i), patience);
      if (got.answer) {
        CHECK(*got.answer == want);
        ++t.right;
        t.sent += got.sent.sent_bytes;
        t.there_before += got.sent.cached;
        t.over += got.sent.over;
        co_return;
      }
      t.errors.insert(got.answer.error().message());
      if (patience.count() > 0 && got.answer.error() == asio::error::operation_aborted) {
        ++t.cancelled;
        co_return;
      }
      ++t.failed;
      co_await wait_for(300ms);
    }
  }

  // One side's workers part, in the midst of what they do, and come together again.
  awaitable<void> lose(task_group& workers, parts_tally& t) {
    auto& side = context.chance(0.5) ? from : to;
    if (side.w.split.workers() == 1 || joining) co_return;
    joining = true;
    ++t.lost;
    co_await wait_for(context.between(1ns, 3ms));
    side.lose(context.below(100));
    co_await wait_for(context.between(1ns, 3ms));
    co_await side.join(workers);
    joining = false;
  }

  awaitable<void> run(parts_tally& t) {
    const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
      to.open_doors(workers);
      co_await from.join(workers);
      co_await to.join(workers);
      const auto all = co_await with(task_group{}, [&](task_group& asking) -> awaitable<void> {
        for (int i = 0; i < p.requests; ++i) {
          asking.spawn(ask(workers, i, t));
          if (context.chance(0.5)) co_await wait_for(context.between(1ns, 5ms));
        }
      });
      CHECK(static_cast<bool>(all));
      for (auto* side : {&from, &to}) {
        co_await side->w.leader->async_drain(asio::as_tuple(asio::deferred));
        side->stop();
        side->close();
      }
    });
    CHECK(static_cast<bool>(v));
    co_await wait_for(10s);  // whoever still says goodbye
    from.check_end();
    to.check_end();
  }

  sim_context& context;
  parts_plan p;
  link_options how{.credits = 8, .messages = 4, .chunk = 4096, .greeting = 2s, .silence = 3s};
  parts_side from, to;
  bool joining = false;
};

template <class Setup, class Faults>
void run_parts(std::uint64_t seed, Setup setup, Faults faults, parts_tally& all) {
  INFO(replay_command(seed));
  sim_context context(seed);
  auto& net = sim::net::of(context);
  net.faults.socket_buffer = 20 << 10;
  parts_plan p{.from = parts_shapes[context.below(parts_shapes.size())],
               .to = parts_shapes[context.below(parts_shapes.size())]};
  p.prefill = {.block_tokens = static_cast<std::uint32_t>(4 << context.below(2)),
               .max_batched_tokens = static_cast<std::uint32_t>(16 << context.below(4))};
  p.decode = {.block_tokens = other_blocks(context, p.prefill.block_tokens)};
  setup(context, p);
  INFO(p.from.text(), " to ", p.to.text());
  bool ended = false;
  {
    sim::node prefill(context, "prefill"), decode(context, "decode");
    const auto b = std::make_shared<parts_bed>(context, p, prefill.get_executor(), decode.get_executor());
    asio::co_spawn(
        decode.get_executor(), [b, &all] { return b->run(all); },
        [&](std::exception_ptr e) {
          CHECK(!e);
          ended = true;
        });
    faults(context, net);
    for (int minutes = 0; minutes < 60 && !ended; ++minutes) (void)context.run_for(1min);
    CHECK(ended);  // nothing hangs
    CHECK(context.run() == sim_context::outcome::done);
  }
}

void no_faults(sim_context&, sim::net&) {}

void tell_parts(const parts_tally& t) {
  std::string all;
  for (auto& e : t.errors) all += "\n  " + e;
  MESSAGE(t.right, " right, ", t.failed, " failed attempts, ", t.cancelled, " cancelled, ", t.there_before,
          " tokens there before, ", t.over, " over early, ", t.lost, " times a side was lost, ", t.sent, " bytes", all);
}

}  // namespace

TEST_CASE("streaming between parts: on a sound network every answer is the model's at the first attempt") {
  parts_tally all;
  const auto tried = seeds(150);
  for (auto seed : tried) run_parts(seed, [](sim_context&, parts_plan&) {}, no_faults, all);
  tell_parts(all);
  CHECK(all.failed == 0);
  CHECK(all.right == tried.size() * 5);
  CHECK(all.sent >= enough(500'000));
  CHECK(all.there_before >= enough(500));
}

TEST_CASE("streaming between parts: small pools, and readers that go before the end") {
  parts_tally all;
  for (auto seed : seeds(150))
    run_parts(
        seed,
        [](sim_context& context, parts_plan& p) {
          p.prefill.kv_blocks = static_cast<std::uint32_t>(40 + context.below(40));
          p.decode.kv_blocks = room_of(40 + context.below(40), p.decode);
          p.impatient = true;
          p.requests = 8;
          p.attempts = 8;
        },
        no_faults, all);
  tell_parts(all);
  CHECK(all.right >= enough(500));
  CHECK(all.cancelled >= enough(60));
}

TEST_CASE(
    "streaming between parts: links that are cut and damaged give right answers or errors, and leave no block behind") {
  parts_tally all;
  for (auto seed : seeds(150))
    run_parts(
        seed, [](sim_context&, parts_plan& p) { p.attempts = 8; },
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.5)) net.faults.clog = 0.02;
          const auto when = duration(context.below(10'000'000));
          clock::of(context.get_executor()).async_wait_for(when, [&context, &net](error_code) {
            if (context.chance(0.5)) net.partition("prefill", "decode");
          });
          clock::of(context.get_executor()).async_wait_for(when + 5s, [&net](error_code) { net.heal(); });
        },
        all);
  tell_parts(all);
  CHECK(all.right >= enough(500));
  CHECK(all.failed >= enough(20));
}

TEST_CASE(
    "streaming between parts: workers that are lost on either side, and come together again, leave nothing wrong "
    "behind") {
  parts_tally all;
  for (auto seed : seeds(200))
    run_parts(
        seed,
        [](sim_context&, parts_plan& p) {
          p.attempts = 8;
          p.loses = 0.3;
        },
        no_faults, all);
  tell_parts(all);
  CHECK(all.right >= enough(500));
  CHECK(all.failed >= enough(50));
  CHECK(all.lost >= enough(100));
}

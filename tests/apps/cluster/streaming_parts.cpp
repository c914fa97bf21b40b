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
  std::uint64_t sent = 0, resumed = 0, restarted = 0, again = 0;
  std::set<std::string> errors;
};

struct parts_plan {
  topology from = topology(), to = topology();
  engine_options prefill = {}, decode = {};
  int requests = 5, attempts = 1;
  bool impatient = false;
  double loses = 0;          // a side's links, beside a request
  std::uint64_t copies = 0;  // of each other's KV, which those that decode keep; then others come in their places
  // Ask; or ask once, and lose one that decodes; or ask for what finds room where an answer lay that had gone on behind a loss.
  enum class course { asks, loses_one, reuses } course = course::asks;
};

struct parts_bed {
  parts_bed(sim_context& c, const parts_plan& p, asio::any_io_executor prefill, asio::any_io_executor decode)
      : context(c),
        p(p),
        from(prefill, "sim:h200", "prefill", p.from, toy, pinned_kv(p.prefill), how),
        to(
            decode, "sim:h200", "decode", p.to, toy, pinned_kv(p.decode), how,
            [](std::uint32_t n) {
              const auto port = std::to_string(700 + n);
              return std::pair("tcp://0.0.0.0:" + port, "tcp://decode:" + port);
            },
            p.copies) {}

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
    if (p.copies > 0 && context.chance(0.7))
      co_await side.replace(1 + static_cast<std::uint32_t>(context.below(side.w.split.workers() - 1)));
    co_await side.join(workers);
    joining = false;
  }

  awaitable<void> ask_all(task_group& workers, task_group& asking, parts_tally& t) {
    for (int i = 0; i < p.requests; ++i) {
      asking.spawn(ask(workers, i, t));
      if (context.chance(0.5)) co_await wait_for(context.between(1ns, 5ms));
    }
  }

  awaitable<void> ask_once(std::size_t number, std::uint32_t length, std::shared_ptr<std::vector<std::uint32_t>> told,
                           std::vector<token_id> prompt, parts_tally& t) {
    const auto got = co_await computed_elsewhere(from, to, toy_request(prompt, length), "r-" + std::to_string(number),
                                                 0, {}, [told, number] { ++(*told)[number]; });
    if (!got.answer) t.errors.insert(got.answer.error().message());
    ++(got.answer ? t.right : t.failed);
    if (got.answer) CHECK(*got.answer == toy_answer(prompt, length));
  }

  // When all are being decoded.
  awaitable<void> ask_all_and_lose_one(task_group& workers, task_group& asking, parts_tally& t) {
    const auto told = std::make_shared<std::vector<std::uint32_t>>(p.requests);
    for (std::size_t i = 0; i < told->size(); ++i)
      asking.spawn(ask_once(i, 60, told, toy_prompt(1 + context.below(100), context.below(3)), t));
    while (std::ranges::any_of(*told, [](auto n) { return n < 4; })) co_await wait_for(100us);
    co_await to.replace(1 + static_cast<std::uint32_t>(context.below(to.w.split.workers() - 1)));
    co_await to.join(workers);
  }

  // The other's KV is still being put back.
  awaitable<void> ask_in_its_room(task_group& workers, task_group& asking, parts_tally& t) {
    auto& leads = *to.w.leader;
    const auto prompt = toy_prompt(160, 2);
    (void)co_await read_all(from.w.leader->submit(toy_request(prompt, 1)).value());  // it is there, to be sent at once
    auto over = leads.submit(toy_request(toy_prompt(10, 1), 220)).value();
    while (leads.counters().generated_tokens < 200) co_await wait_for(50us);
    co_await to.replace(1 + static_cast<std::uint32_t>(context.below(to.w.split.workers() - 1)));
    co_await to.join(workers);
    over.cancel();
    asking.spawn(ask_once(0, 20, std::make_shared<std::vector<std::uint32_t>>(1), prompt, t));
  }

  awaitable<void> take_course(task_group& workers, task_group& asking, parts_tally& t) {
    switch (p.course) {
      case parts_plan::course::asks:
        return ask_all(workers, asking, t);
      case parts_plan::course::loses_one:
        return ask_all_and_lose_one(workers, asking, t);
      case parts_plan::course::reuses:
        return ask_in_its_room(workers, asking, t);
    }
    std::abort();
  }

  awaitable<void> run(parts_tally& t) {
    const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
      to.open_doors(workers);
      co_await from.join(workers);
      co_await to.join(workers);
      const auto all = co_await with(task_group{}, [&](task_group& asking) { return take_course(workers, asking, t); });
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
    const auto c = to.w.leader->counters();
    t.resumed += c.resumed_requests, t.restarted += c.restarted_requests, t.again += c.recomputed_tokens;
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

// Those that decode, which then are in parts.
void keeps_copies(sim_context& context, parts_plan& p) {
  while (p.to.workers() == 1) p.to = parts_shapes[context.below(parts_shapes.size())];
  p.copies = 64 << 20;
}

void tell_parts(const parts_tally& t) {
  std::string all;
  for (auto& e : t.errors) all += "\n  " + e;
  MESSAGE(t.right, " right, ", t.failed, " failed attempts, ", t.cancelled, " cancelled, ", t.there_before,
          " tokens there before, ", t.over, " over early, ", t.lost, " times a side was lost, ", t.resumed,
          " went on, ", t.restarted, " began anew, ", t.again, " tokens again, ", t.sent, " bytes", all);
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

TEST_CASE(
    "streaming between parts: with copies answers go on behind the loss of a worker that decodes, whatever is on its "
    "way") {
  parts_tally all;
  std::size_t turned = 0;
  for (auto seed : seeds(300))
    run_parts(
        seed,
        [&](sim_context& context, parts_plan& p) {
          keeps_copies(context, p);
          p.attempts = 8;
          p.requests = 8;
          p.loses = 0.3;
          p.impatient = context.chance(0.5);
          if (context.chance(0.5)) p.decode.kv_blocks = room_of(40 + context.below(40), p.decode);
          if (!context.chance(0.3)) return;
          ++turned;
          p.decode.kv_blocks = 2 * room_of(40, p.decode);
          p.decode.swap = std::uint64_t{3} * p.decode.kv_blocks * p.decode.block_tokens * 16 * toy_model::layers;
          p.decode.swap_by = swap_unit::microbatch;
        },
        no_faults, all);
  tell_parts(all);
  CHECK(all.right >= enough(1000));
  CHECK(all.lost >= enough(150));
  CHECK(all.resumed >= enough(100));
  CHECK(all.restarted >= enough(5));
  CHECK(turned >= enough(50));
}

TEST_CASE("streaming between parts: of each answer no more than a token is computed again, whoever decodes is lost") {
  parts_tally all;
  const auto tried = seeds(100);
  for (auto seed : tried)
    run_parts(
        seed,
        [](sim_context& context, parts_plan& p) {
          keeps_copies(context, p);
          p.course = parts_plan::course::loses_one;
        },
        no_faults, all);
  tell_parts(all);
  CHECK(all.failed == 0);
  CHECK(all.right == tried.size() * 5);
  CHECK(all.restarted == 0);
  CHECK(all.again <= tried.size() * 5);
  CHECK(all.resumed == tried.size() * 5);
}

TEST_CASE("streaming between parts: no KV comes to where copies are put back, before they are") {
  parts_tally all;
  const auto tried = seeds(50);
  for (auto seed : tried)
    run_parts(
        seed,
        [](sim_context& context, parts_plan& p) {
          keeps_copies(context, p);
          p.decode.kv_blocks = 240 / p.decode.block_tokens;
          p.course = parts_plan::course::reuses;
        },
        no_faults, all);
  tell_parts(all);
  CHECK(all.right == tried.size());
  CHECK(all.failed == 0);
}

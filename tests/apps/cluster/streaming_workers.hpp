// A prefill and a decode worker, each a host of a simulated cluster, without the HTTP between them: tickets are handed
// over. The toy model is the judge: one wrong byte of KV makes another answer.
#pragma once

#include <doctest/doctest.h>

#include <set>

#include "cache/events.hpp"
#include "cluster/departure.hpp"
#include "cluster/landing.hpp"
#include "cluster/wire_of.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "engine/toy_engine.hpp"

namespace cokv::test {

struct streaming {
  sim_context* context = nullptr;
  std::string listen = "tcp://0.0.0.0:700", connect = "tcp://decode:700";
  engine_options prefill = {}, decode = {};
  std::vector<token_id> eos = {};
  link_options link = {.credits = 8,
                       .messages = 4,
                       .chunk = 4096,
                       .greeting = std::chrono::seconds(2),
                       .silence = std::chrono::seconds(3)};
  int requests = 6, attempts = 8;
  std::size_t shortest = 1, longest = 100;  // of prompts
  std::size_t fewest = 1;                   // tokens of an answer, and up to 19 more
  bool impatient = false;                   // some readers go before the end
  bool breaks = false;                      // links are cut now and then

  // A worker that is lost: when, how many answers it had, and each answer's longest time without a token from then on.
  time_point lost = time_point::max();
  std::size_t had = 0;
  std::vector<duration> waits;

  std::size_t answered = 0, given_up = 0, cancelled = 0, failed_attempts = 0;
  std::size_t departed = 0, over = 0, here_before = 0, there_before = 0, all_here = 0, computed = 0;
  std::uint64_t sent = 0, early = 0;
  std::set<std::string> errors;
};

// The same, or of any other size.
inline std::uint32_t other_blocks(sim_context& context, std::uint32_t same) {
  constexpr std::uint32_t sizes[] = {1, 2, 3, 4, 6, 8, 12, 16};
  return context.chance(0.5) ? same : sizes[context.below(8)];
}

// As much room as so many blocks of four tokens have, at the least.
inline std::uint32_t room_of(std::uint64_t fours, const engine_options& o) {
  return static_cast<std::uint32_t>(fours * ((o.block_tokens + 3) / o.block_tokens));
}

inline engine_options pinned_kv(engine_options o) {
  o.kv_memory = memory_kind::pinned;
  if (o.kv_blocks == 0) o.kv_blocks = room_of(200, o);
  return o;
}

struct cluster_worker {
  cluster_worker(asio::any_io_executor executor, streaming& to, engine_options o, const std::string& as)
      : ex(std::move(executor)),
        s(to),
        windows(ex),
        events(std::hash<std::string>()(as)),
        run(ex, open_device(ex, "sim:h200").value(),
            std::make_shared<toy_model>(toy_price{.layer = 50us, .token = 4us}, s.eos), std::nullopt,
            tells(pinned_kv(std::move(o)), events)),
        life(as + "-life"),
        links(s.link) {
    links.name = "kv/" + as + "/" + life;
    links.ns = cluster::links_of(run.running().fingerprint());
  }

  static engine_options tells(engine_options o, cache::event_log& to) {
    o.on_kv_change = to.of("device");
    return o;
  }

  void check_end() {
    CHECK(run.counters().blocks_in_use == 0);
    CHECK(run.counters().running == 0);
    CHECK(windows.size() == 0);
  }

  asio::any_io_executor ex;
  streaming& s;
  window_table windows;
  cache::event_log events;
  engine run;
  std::string life;
  link_options links;
};

// Computes what it is handed, until it is told to stop.
struct prefill_worker : cluster_worker {
  prefill_worker(asio::any_io_executor ex, streaming& s)
      : cluster_worker(ex, s, s.prefill, "prefill"), pool(windows, links, 100ms) {}

  static awaitable<void> send(std::shared_ptr<prefill_worker> w, generation_request r, cluster::ticket to) {
    ++w->sending;
    // A link that is shared with others is cut under all of them.
    if (auto& ctx = *w->s.context; w->s.breaks && ctx.chance(0.2))
      asio::co_spawn(
          w->ex,
          [](std::shared_ptr<prefill_worker> w, duration d) -> awaitable<void> {
            co_await wait_for(d);
            w->pool.close();
          }(w, ctx.between(1ns, 3ms)),
          asio::detached);
    auto done = co_await cluster::depart(w->run, w->pool, std::move(r), to, {.in_flight = 5});
    --w->sending;
    if (!done) {
      w->s.errors.insert("departure: " + done.error().message());
      co_return;
    }
    ++w->s.departed;
    w->s.over += done->over;
    w->s.there_before += done->cached;
    w->s.computed += done->computed;
    w->s.sent += done->sent_bytes;
    CHECK(done->tokens == to.tokens);
    CHECK((done->over || done->sent_bytes == std::uint64_t{to.tokens - to.first} * 16 * toy_model::layers));
  }

  cluster::link_pool pool;
  int sending = 0;
};

struct decode_worker : cluster_worker {
  decode_worker(asio::any_io_executor ex, streaming& s)
      : cluster_worker(ex, s, s.decode, "decode"), door(windows, links) {
    REQUIRE(!door.listen(s.listen));
  }

  awaitable<error_code> attempt(std::shared_ptr<prefill_worker> from, generation_request r, std::string id,
                                std::uint32_t attempt, duration patience, const std::vector<token_id>& want) {
    auto l = co_await cluster::landing::open(
        windows, run, r, cluster::offer_of(from->run, "prefill", from->life),
        {.id = id, .attempt = attempt, .life = life, .links = {s.connect}, .patience = 2s, .lease = 4s});
    if (!l) co_return l.error();
    CHECK((*l)->ticket().tokens == r.prompt.size());
    s.here_before += (*l)->ticket().first;
    s.all_here += (*l)->ticket().parts[0].legs.empty();
    auto answer = (*l)->take_answer();
    const auto over = std::make_shared<bool>(false);
    error_code landed;
    time_point down{};
    auto& time = clock::of(ex);
    toy_outcome got;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> {
        landed = co_await (*l)->run(door);
        down = time.now();
      });
      asio::co_spawn(from->ex, prefill_worker::send(from, r, (*l)->ticket()), asio::detached);
      if (patience.count() > 0)
        clock::of(ex).async_wait_for(patience, [g = &answer, over](error_code) {
          if (!*over) g->cancel();
        });
      for (;;) {
        auto [ec, piece] = co_await answer.async_next(asio::as_tuple(asio::deferred));
        if ((got.ended = ec)) break;
        got.tokens.push_back(piece.token);
        got.at.push_back(time.now());
      }
    });
    *over = true;
    CHECK(static_cast<bool>(v));
    CHECK(got.tokens.size() <= want.size());
    CHECK(std::equal(got.tokens.begin(), got.tokens.end(), want.begin()));
    if (!got.tokens.empty()) s.early += got.at.front() < down;
    if (got.ended != asio::error::eof) co_return got.ended;
    CHECK(landed.message() == error_code().message());
    CHECK(got.tokens == want);
    co_return error_code();
  }

  // As a router does: another attempt, of the same worker.
  awaitable<void> ask(std::shared_ptr<prefill_worker> from, std::string id, std::vector<token_id> prompt,
                      std::uint32_t n, duration patience) {
    const auto want = toy_answer(prompt, n, s.eos);
    for (int i = 0; i < s.attempts; ++i) {
      const auto ec = co_await attempt(from, toy_request(prompt, n), id, static_cast<std::uint32_t>(i), patience, want);
      if (!ec) {
        ++s.answered;
        co_return;
      }
      if (patience.count() > 0 && ec == asio::error::operation_aborted) {
        ++s.cancelled;
        co_return;
      }
      ++s.failed_attempts;
      s.errors.insert("landing: " + ec.message());
      co_await wait_for(300ms);
    }
    ++s.given_up;
  }

  cluster::link_door door;
};

// Both at work until all requests have ended.
inline awaitable<void> stream_some(asio::any_io_executor prefill_ex, streaming& s) {
  const auto ex = co_await asio::this_coro::executor;
  auto& ctx = *s.context;
  auto from = std::make_shared<prefill_worker>(prefill_ex, s);
  auto to = std::make_shared<decode_worker>(ex, s);
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(to->door.run());
    auto all = co_await with(task_group{}, [&](task_group& asking) -> awaitable<void> {
      for (int i = 0; i < s.requests; ++i) {
        const auto size = s.shortest + ctx.below(s.longest - s.shortest + 1);
        const auto patience = s.impatient && ctx.chance(0.4) ? ctx.between(1ns, 8ms) : duration::zero();
        asking.spawn(to->ask(from, "request-" + std::to_string(i), toy_prompt(size, ctx.below(3)),
                             static_cast<std::uint32_t>(1 + ctx.below(20)), patience));
        if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 5ms));
      }
    });
    CHECK(static_cast<bool>(all));
    while (from->sending > 0) co_await wait_for(10ms);
    from->pool.close();
    to->door.close();
  });
  CHECK(static_cast<bool>(v));
  co_await to->run.async_drain(asio::deferred);
  co_await from->run.async_drain(asio::deferred);
  co_await wait_for(10s);  // whoever still says goodbye
  from->check_end();
  to->check_end();
  CHECK(s.answered + s.given_up + s.cancelled == static_cast<std::size_t>(s.requests));
}

}  // namespace cokv::test

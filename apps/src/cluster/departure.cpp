#include "cluster/departure.hpp"

#include "cluster/part_sending.hpp"
#include "cluster/wire_of.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {
namespace {

using namespace std::chrono_literals;

constexpr auto patience = 15s;  // for other workers' links to the receiver's

struct departure {
  departure(engine& of, cluster::ticket t, const departure_options& o)
      : e(of),
        to(std::move(t)),
        mine{.mine = wire_of(e),
             .split = e.running().part().split,
             .self = e.running().part().who,
             .shape = e.pool().shape(),
             .to = to,
             .told = nullptr,
             .in_flight = o.in_flight,
             .through = o.through,
             .convert = o.convert},
        others(o.others),
        kept_more(e.get_executor()) {}
  departure(const departure&) = delete;
  // Also where its context ends under it: the engine has the sink, whose blocks have the engine.
  ~departure() {
    if (!mine.told) return;
    mine.told->preempted();
    mine.told->release();
  }

  engine& e;
  cluster::ticket to;
  part_sending mine;
  other_parts* others;
  std::shared_ptr<part_tasks> tasks;
  news kept_more;
  std::uint32_t kept = 0;
  departed out;

  peer_link& link() { return mine.links[0]; }

  word say(word::what kind) const { return {.kind = kind, .id = to.id, .attempt = to.attempt}; }
  awaitable<error_code> send(word w) {
    auto sent = co_await link().async_send(encode(w), as_result);
    co_return sent.error();
  }

  awaitable<error_code> say_first(generation& g) {
    auto piece = co_await g.async_next(as_result);
    if (!piece) co_return piece.error();
    const auto& r = g.report();
    out.cached = r.cached_tokens;
    out.computed = r.prompt_tokens - r.cached_tokens;
    auto w = say(word::what::first);
    w.token = piece->token;
    w.logprobs = std::move(piece->logprobs);
    co_return co_await send(std::move(w));
  }

  // The newest is all that matters.
  awaitable<error_code> say_kept() {
    const auto all = [this] { return tasks ? tasks->kept(kept) : kept; };
    for (std::uint32_t said = 0; !mine.told->lost;) {
      while (all() == said) co_await kept_more.async_wait(asio::deferred);
      if (mine.told->lost) break;
      auto w = say(word::what::kept);
      said = w.tokens = all();
      if (auto ec = co_await send(std::move(w))) co_return ec;
    }
    co_return error_code();
  }

  // However long it waits for its turn here: the receiver gives up on whom it does not hear of.
  awaitable<error_code> say_alive() {
    auto& time = clock::of(e.get_executor());
    for (;;) {
      co_await time.async_wait_for(to.lease / 3, asio::deferred);
      if (auto ec = co_await send(say(word::what::begin))) co_return ec;
    }
  }

  // Until all of it is there. Other workers are ready for their parts before the first step is.
  awaitable<error_code> send_all(task_group& alive, generation& g) {
    auto both = co_await with(task_group{}, [&](task_group& two) {
      const auto over = [&](error_code sent) {
        if (sent != errc::stale_reference) return sent;
        out.over = true;  // its windows are revoked
        two.cancel();
        return error_code();
      };
      two.spawn(say_first(g));
      two.spawn([&, over]() -> awaitable<error_code> { co_return over(co_await mine.stream()); });
      if (tasks) two.spawn([&, over]() -> awaitable<error_code> { co_return over(co_await tasks->over()); });
      alive.spawn(say_kept());
    });
    co_return both.error();
  }

  awaitable<error_code> compute(task_group& alive, generation_request r) {
    r.max_tokens = 1;
    const bool wanted = to.first < to.tokens;
    if (wanted) r.sink = mine.told;
    auto g = e.submit(std::move(r));
    if (!g) co_return g.error();
    co_return wanted ? co_await send_all(alive, *g) : co_await say_first(*g);
  }

  awaitable<error_code> prepared() {
    if (auto ec = co_await mine.say_begin()) co_return ec;
    if (to.first == to.tokens) co_return error_code();
    if (others) {
      tasks = others->begin({.kind = part_note::what::send, .send = to});
      tasks->on_kept([this] { kept_more.tell(); });
      if (auto ready = co_await with_deadline(tasks->ready(), patience); !ready) co_return ready.error();
    }
    mine.told = std::make_shared<told_parts>(e.get_executor(), e.pool().shape().layers(), tasks ? tasks->number() : 0);
    mine.settled = [this](std::uint32_t n) {
      kept = n;
      kept_more.tell();
    };
    if (!mine.sends) kept = to.tokens;
    co_return error_code();
  }

  // Not cancelled by an exception, so that it ends behind the others.
  awaitable<error_code> run(generation_request r) {
    auto v = co_await with(task_group{}, [&](task_group& alive) -> awaitable<error_code> {
      alive.spawn(say_alive());
      error_code ec = co_await prepared();
      if (!ec) ec = co_await compute(alive, std::move(r));
      if (!ec) alive.cancel();
      co_return ec;
    });
    if (tasks) {
      co_await tasks->end();
      tasks->on_kept({});
    }
    if (mine.told) mine.told->release();
    out.sent_bytes = mine.bytes + (tasks ? tasks->bytes() : 0);
    co_return v.error();
  }
};

}  // namespace

awaitable<result<departed>> depart(engine& e, link_pool& links, generation_request r, cluster::ticket to,
                                   departure_options o) {
  const auto prompt = static_cast<std::uint32_t>(r.prompt.size());
  if (!e.running().part().whole() && !o.others) co_return errc::unsupported;
  departure d(e, std::move(to), o);
  if (d.to.fingerprint != e.running().fingerprint() || !d.mine.fits()) co_return errc::namespace_mismatch;
  if (d.to.tokens != prompt || d.to.first > prompt || (d.to.first < prompt && d.to.first % d.to.wire.block_tokens != 0))
    co_return errc::invalid_argument;
  if (auto ec = co_await d.mine.connect(links, true)) co_return ec;
  d.out.tokens = prompt;
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto ec = co_await d.run(std::move(r));
  if (!ec) co_return d.out;
  // Lest the receiver waits for what won't come: it may be told even by who was cancelled, but not for long.
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  if (!d.link().error()) {
    auto w = d.say(word::what::failed);
    w.code = ec;
    (void)co_await with_deadline(d.link().async_send(encode(w), asio::deferred), 1s);
  }
  co_return ec;
}

}  // namespace cokv::cluster

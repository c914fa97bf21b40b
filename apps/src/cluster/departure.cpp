#include "cluster/departure.hpp"

#include <algorithm>
#include <deque>

#include "cluster/news.hpp"
#include "cluster/wire_of.hpp"
#include "cluster/word.hpp"
#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {
namespace {

using namespace std::chrono_literals;

// What the engine tells, for the coroutine that sends it. Bounded by the prompt: each layer of each chunk once.
class told_parts final : public prompt_sink {
 public:
  struct part {
    std::uint32_t layer;
    std::uint64_t end;  // tokens before it are there
    event computed;
  };

  told_parts(asio::any_io_executor ex, std::uint32_t layers) : changed(std::move(ex)), layers_(layers) {}

  void begun(prompt_blocks w, std::uint32_t there) override {
    if (lost) return;
    where = std::move(w);
    for (std::uint32_t l = 0; l < layers_ && there > 0; ++l) parts.push_back({l, there, event()});
    changed.tell();
  }
  void layer(std::uint32_t layer, index_range tokens, event computed) override {
    if (lost) return;
    parts.push_back({layer, tokens.end(), std::move(computed)});
    changed.tell();
  }
  // What was sent of the blocks it had is no use to a stream of those it will have: whoever asked asks once more.
  void preempted() override {
    lost = true;
    where.reset();
    parts.clear();
    changed.tell();
  }

  std::optional<prompt_blocks> where;
  std::deque<part> parts;
  bool lost = false;
  news changed;

 private:
  std::uint32_t layers_;
};

struct departure {
  engine& e;
  cluster::ticket to;
  departure_options o;
  peer_link link;
  std::shared_ptr<told_parts> told;
  news kept_more;
  std::uint32_t kept = 0;
  departed out;

  // Also where its context ends under it: the engine has the sink, whose blocks have the engine.
  ~departure() {
    if (told) told->preempted();
  }

  word say(word::what kind) const { return {.kind = kind, .id = to.id, .attempt = to.attempt}; }
  awaitable<error_code> send(word w) {
    auto sent = co_await link.async_send(encode(w), as_result);
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
    for (std::uint32_t said = 0;;) {
      while (kept == said) co_await kept_more.async_wait(asio::deferred);
      auto w = say(word::what::kept);
      said = w.tokens = kept;
      if (auto ec = co_await send(std::move(w))) co_return ec;
    }
  }

  // However long it waits for its turn here: the receiver gives up on whom it does not hear of.
  awaitable<error_code> say_alive() {
    auto& time = clock::of(e.get_executor());
    for (;;) {
      co_await time.async_wait_for(to.lease / 3, asio::deferred);
      if (auto ec = co_await send(say(word::what::begin))) co_return ec;
    }
  }

  awaitable<error_code> stream() {
    while (!told->where && !told->lost) co_await told->changed.async_wait(asio::deferred);
    if (told->lost) co_return errc::unavailable;
    auto side = side_of(e, to.wire, to.wire, told->where->memory, told->where->blocks, to.tokens, to.first);
    const auto shape = side.shape;
    outbound_options how{
        .in_flight = o.in_flight, .through = o.through, .settled = [this](std::uint32_t, std::uint32_t n) {
          kept = n;
          kept_more.tell();
        }};
    const auto mine = wire_of(e).type;
    const auto through = mine == to.wire.type ? nullptr : o.convert->of(to.life);
    if (mine != to.wire.type && !through) co_return errc::out_of_memory;
    if (through) how.convert = conversion{mine, to.wire.type, through->get()};
    outbound_stream all(std::move(side), targets_of(to.legs, link), std::move(how));
    auto v = co_await with(std::move(all), [this, &shape](outbound_stream& s) -> awaitable<error_code> {
      std::vector<std::uint64_t> sent_to(shape.layers(), to.first);
      while (std::ranges::any_of(sent_to, [this](auto n) { return n < to.tokens; })) {
        while (told->parts.empty() && !told->lost) co_await told->changed.async_wait(asio::deferred);
        if (told->lost) co_return errc::unavailable;
        const auto part = std::move(told->parts.front());
        told->parts.pop_front();
        auto& at = sent_to[part.layer];
        // Whole blocks: the rest of one goes with its end, behind a later event of the same stream.
        const auto end = part.end >= to.tokens ? to.tokens : part.end / shape.block_tokens() * shape.block_tokens();
        if (end <= at) continue;
        const index_range now{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(end - at)};
        at = end;
        co_await s.tokens(part.layer, 0, now, part.computed);
      }
      const auto ec = co_await s.commit();
      out.sent_bytes = s.bytes();
      co_return ec;
    });
    told->where.reset();
    co_return told->lost ? make_error_code(errc::unavailable) : v.error();
  }

  awaitable<error_code> run(generation_request r) {
    if (auto ec = co_await send(say(word::what::begin))) co_return ec;
    r.max_tokens = 1;
    if (to.first < to.tokens) r.sink = told;
    auto g = e.submit(std::move(r));
    if (!g) co_return g.error();
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
      group.spawn(say_alive());
      error_code ec;
      if (to.first == to.tokens) {
        ec = co_await say_first(*g);
      } else {
        auto both = co_await with(task_group{}, [&](task_group& two) {
          two.spawn(say_first(*g));
          two.spawn([&]() -> awaitable<error_code> {
            const auto sent = co_await stream();
            if (sent != errc::stale_reference) co_return sent;
            out.over = true;  // its windows are revoked
            two.cancel();
            co_return error_code();
          });
          group.spawn(say_kept());
        });
        ec = both.error();
      }
      if (!ec) group.cancel();
      co_return ec;
    });
    co_return v.error();
  }
};

}  // namespace

awaitable<result<departed>> depart(engine& e, link_pool& links, generation_request r, cluster::ticket to,
                                   departure_options o) {
  const topology alone;
  const auto bt = to.wire.block_tokens;
  if (to.fingerprint != e.running().fingerprint() || !fits(to.wire, wire_of(e), o.convert != nullptr) ||
      to.topology.text() != alone.text())
    co_return errc::namespace_mismatch;
  if (to.tokens != r.prompt.size() || to.first > to.tokens || (to.first < to.tokens && to.first % bt != 0))
    co_return errc::invalid_argument;
  auto link = co_await links.get(to.life, to.links);
  if (!link) co_return link.error();
  const auto ex = e.get_executor();
  departure d{.e = e,
              .to = std::move(to),
              .o = o,
              .link = std::move(*link),
              .told = std::make_shared<told_parts>(ex, e.pool().shape().layers()),
              .kept_more = news(ex),
              .out = {.tokens = static_cast<std::uint32_t>(r.prompt.size())}};
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto ec = co_await d.run(std::move(r));
  if (!ec) co_return d.out;
  // Lest the receiver waits for what won't come: it may be told even by who was cancelled, but not for long.
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  if (!d.link.error()) {
    auto w = d.say(word::what::failed);
    w.code = ec;
    (void)co_await with_deadline(d.link.async_send(encode(w), asio::deferred), 1s);
  }
  co_return ec;
}

}  // namespace cokv::cluster

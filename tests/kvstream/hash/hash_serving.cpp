#include "kvstream/hash/hash_serving.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "cokv/kvstream/gather.hpp"
#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/kvstream/placement.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::test {
namespace {

using namespace std::chrono_literals;

// What a worker is made of. Whoever is at work on it holds it: a process that dies drops its coroutines in any order.
struct worker_state {
  worker_state(const asio::any_io_executor& ex, hash_serving& serving, hash_place where)
      : s(serving),
        at(std::move(where)),
        windows(ex),
        pool(s.model.shape(), at.blocks, memory(ex)),
        luck(static_cast<unsigned>(s.seed) + 1) {
    std::ranges::fill(pool.memory().bytes(), std::byte{0xdd});
    if (at.stage) REQUIRE(!windows.stage(*gpu, *at.stage));
    if (!gpu || !at.packed) return;
    staging.emplace(staging_pool::make(*gpu, 512, 3).value());
    through.emplace(packing{*staging, gpu->make_stream({.name = "pack"}).value()});
  }
  ~worker_state() { s.leaked += pool.stats().leased; }

  buffer memory(const asio::any_io_executor& ex) {
    const auto n = pool_bytes(s.model.shape(), at.blocks);
    if (at.gpu) gpu = at.gpu(ex);
    if (at.kind == memory_kind::shared) return allocate_shared(n).value();
    return at.kind == memory_kind::host || !gpu ? buffer::host(n) : gpu->allocate(n, at.kind).value();
  }
  const packing* packs(std::uint64_t id) const { return through && id % 3 != 0 ? &*through : nullptr; }

  hash_serving& s;
  hash_place at;
  std::optional<device> gpu;
  window_table windows;
  kv_pool pool;
  std::optional<staging_pool> staging;
  std::optional<packing> through;
  std::minstd_rand luck;
};

// Once in so many times.
void perhaps_break(worker_state& w, peer_link& link, unsigned of) {
  if (w.s.breaks && w.luck() % of == 0) link.close();
}

// A sequence's blocks, in the ledger.
class blocks_of {
 public:
  explicit blocks_of(std::shared_ptr<worker_state> w) : w_(std::move(w)) {}
  ~blocks_of() {
    for (auto& l : leases_) w_->s.ledger.give_back(w_.get(), l.index());
  }
  blocks_of(const blocks_of&) = delete;
  blocks_of& operator=(const blocks_of&) = delete;

  // Waits while others have too many.
  awaitable<error_code> take(std::uint32_t tokens) {
    const auto size = w_->s.model.shape().block_tokens();
    for (int patience = 0;; ++patience) {
      auto got = w_->pool.allocate((tokens + size - 1) / size);
      if (got) {
        leases_ = std::move(*got);
        break;
      }
      if (patience == 5000) co_return got.error();
      co_await clock::of(co_await asio::this_coro::executor).async_wait_for(2ms);
    }
    for (auto& l : leases_) CHECK(w_->s.ledger.take(w_.get(), l.index()));  // nobody has it
    co_return error_code();
  }
  kv_view view() const { return kv_view(w_->pool, leases_); }
  std::vector<std::uint32_t> table() const {
    std::vector<std::uint32_t> out;
    for (auto& l : leases_) out.push_back(l.index());
    return out;
  }
  hash_model::place place() const { return {w_->pool.memory(), w_->at.blocks, table()}; }

 private:
  std::shared_ptr<worker_state> w_;
  std::vector<block_lease> leases_;
};

// What a prompt is asked for with: {way, id, length, tokens...}, and tickets where the KV is to be pushed.
struct request {
  enum way : std::uint32_t { push, pull, stop };
  std::uint32_t how = push, id = 0;
  hash_model::tokens prompt;
  link_message tickets;

  link_message encode() const {
    hash_model::tokens head{how, id, static_cast<std::uint32_t>(prompt.size())};
    head.insert(head.end(), prompt.begin(), prompt.end());
    link_message m(head.size() * 4);
    std::memcpy(m.data(), head.data(), m.size());
    m.insert(m.end(), tickets.begin(), tickets.end());
    return m;
  }
  static request decode(const link_message& m) {
    request r;
    std::uint32_t head[3];
    REQUIRE(m.size() >= sizeof head);
    std::memcpy(head, m.data(), sizeof head);
    r.how = head[0], r.id = head[1];
    r.prompt.resize(head[2]);
    REQUIRE(m.size() >= sizeof head + head[2] * 4);
    if (head[2] > 0) std::memcpy(r.prompt.data(), m.data() + sizeof head, head[2] * 4);
    r.tickets.assign(m.begin() + static_cast<std::ptrdiff_t>(sizeof head + head[2] * 4), m.end());
    return r;
  }
};

stream_side side_of(const blocks_of& blocks, const geometry& g, std::size_t tokens) {
  const topology alone;
  return {route(alone, alone, g), {}, g, blocks.view(), {{blocks.table(), static_cast<std::uint32_t>(tokens)}}};
}

slice all_of(const geometry& g, const blocks_of& blocks, std::size_t tokens) {
  return slice(g, {0, g.layers()}, blocks.table()).tokens({0, static_cast<std::uint32_t>(tokens)});
}

struct computing {
  const worker_state& w;
  const blocks_of& blocks;
  const hash_model::tokens& prompt;
  stream on;

  // As a kernel, where the device has such; else here and now.
  event layer(std::uint32_t l) {
    auto kernel = [model = &w.s.model, l, prompt = prompt, place = blocks.place()] {
      model->compute(l, prompt, 0, place);
    };
    if (on && !on.launch("layer", kernel)) return on.record();
    kernel();
    return {};
  }
};

awaitable<error_code> push(worker_state& w, peer_link link, const request& r, computing compute) {
  auto tickets = decode_tickets(r.tickets);
  if (!tickets) co_return tickets.error();
  const auto& g = w.s.model.shape();
  outbound_stream to(side_of(compute.blocks, g, r.prompt.size()), targets_of(*tickets, link),
                     {.in_flight = 5, .through = w.packs(r.id)});
  auto v = co_await with(std::move(to), [&](outbound_stream& out) -> awaitable<error_code> {
    for (std::uint32_t l = 0; l < g.layers(); ++l) {
      co_await out.layer(l, after(compute.layer(l)));
      perhaps_break(w, link, 20);
    }
    co_return co_await out.commit();
  });
  co_return v.error();
}

awaitable<error_code> offer(worker_state& w, peer_link link, const request& r, computing compute) {
  const auto& g = w.s.model.shape();
  event computed;
  for (std::uint32_t l = 0; l < g.layers(); ++l) computed = compute.layer(l);
  if (auto done = co_await computed.async_wait(as_result); !done) co_return done.error();
  auto pieces = compute.blocks.view().pieces(all_of(g, compute.blocks, r.prompt.size()));
  if (!pieces) co_return pieces.error();
  auto offered = w.windows.expose(std::move(*pieces), window_access::get);
  if (!offered) co_return offered.error();
  const auto ref = offered->ref();
  link_message m(sizeof ref);
  std::memcpy(m.data(), &ref, sizeof ref);
  if (auto sent = co_await link.async_send(std::move(m), as_result); !sent) co_return sent.error();
  perhaps_break(w, link, 4);
  (void)co_await link.async_closed(as_result);  // whoever asked has what it wanted, or is gone
  (void)co_await offered->async_revoke(as_result);
  co_return error_code();
}

awaitable<void> serve(std::shared_ptr<worker_state> worker, peer_link link) {
  auto& w = *worker;
  auto asked = co_await link.async_receive(as_result);
  if (asked) {
    const auto r = request::decode(*asked);
    if (r.how == request::stop) co_return w.s.close_door();
    blocks_of blocks(worker);
    auto ec = co_await blocks.take(static_cast<std::uint32_t>(r.prompt.size()));
    if (!ec) {
      stream on;
      if (auto made = w.gpu ? w.gpu->make_stream({.name = "compute"}) : stream()) on = *made;  // a lost device has none
      computing compute{w, blocks, r.prompt, on};
      ec = r.how == request::push ? co_await push(w, link, r, compute) : co_await offer(w, link, r, compute);
      if (on) (void)co_await on.async_drain(as_result);  // a kernel writes until then
    }
    if (ec) link.close();  // which ends the other side's wait
    (void)co_await link.async_closed(as_result);
  }
}

awaitable<error_code> receive(worker_state& w, peer_link link, request r, const blocks_of& blocks) {
  auto in = inbound_stream::open(w.windows, side_of(blocks, w.s.model.shape(), r.prompt.size()));
  if (!in) co_return in.error();
  r.tickets = encode(in->tickets({}));
  if (auto sent = co_await link.async_send(r.encode(), as_result); !sent) co_return sent.error();
  co_return (co_await with_deadline(async_stream_in(*in, {{worker{}, link}}, asio::deferred), 40s)).error();
}

awaitable<error_code> fetch(worker_state& w, peer_link link, const request& r, const blocks_of& blocks) {
  if (auto sent = co_await link.async_send(r.encode(), as_result); !sent) co_return sent.error();
  auto m = co_await with_deadline(link.async_receive(asio::deferred), 40s);
  if (!m) co_return m.error();
  window_ref ref;
  REQUIRE(m->size() == sizeof ref);
  std::memcpy(&ref, m->data(), sizeof ref);
  const auto what = all_of(w.s.model.shape(), blocks, r.prompt.size());
  scatter_options o{.through = w.packs(r.id)};
  co_return (co_await async_scatter(link.from(ref), 0, blocks.view(), what, o, as_result)).error();
}

awaitable<error_code> attempt(std::shared_ptr<worker_state> worker, const request& r) {
  auto& w = *worker;
  auto& s = w.s;
  blocks_of blocks(worker);
  if (auto ec = co_await blocks.take(static_cast<std::uint32_t>(r.prompt.size()) + s.answer)) co_return ec;
  const auto url = w.at.connect.empty() ? s.url : w.at.connect;
  auto link = co_await async_connect(w.windows, url, w.at.link, as_result);
  if (!link) co_return link.error();
  const auto ec = r.how == request::push ? co_await receive(w, *link, r, blocks) : co_await fetch(w, *link, r, blocks);
  link->close();
  if (!ec) {
    auto tokens = r.prompt;
    for (std::uint32_t i = 0; i < s.answer; ++i) {
      tokens.push_back(s.model.next(blocks.place(), static_cast<std::uint32_t>(tokens.size())));
      for (std::uint32_t l = 0; l < s.model.shape().layers(); ++l)
        s.model.compute(l, tokens, static_cast<std::uint32_t>(tokens.size()) - 1, blocks.place());
      co_await asio::post(asio::deferred);  // others write what is theirs meanwhile
    }
    CHECK(tokens == s.model.answer(r.prompt, s.answer));
    ++(r.how == request::push ? s.pushed : s.pulled);
  }
  (void)co_await link->async_closed(as_result);
  co_return ec;
}

awaitable<void> ask(std::shared_ptr<worker_state> w, request r) {
  auto& s = w->s;
  for (int i = 0; i < s.attempts; ++i) {
    r.how = (r.id + static_cast<std::uint32_t>(i)) % 2 == 0 ? request::push : request::pull;
    const auto ec = co_await attempt(w, r);
    if (!ec) {
      ++s.answered;
      co_return;
    }
    ++s.failed_attempts;
    s.errors.insert(ec.message());
    co_await clock::of(co_await asio::this_coro::executor).async_wait_for(50ms);
  }
  ++s.given_up;
}

}  // namespace

awaitable<void> hash_prefill(hash_serving& s, hash_place at) {
  const auto ex = co_await asio::this_coro::executor;
  auto w = std::make_shared<worker_state>(ex, s, std::move(at));
  auto door = link_listener::listen(w->windows, w->at.listen, w->at.link).value();
  s.url = door.url();
  s.close_door = [&door] { door.close(); };
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (;;) {
      auto link = co_await door.async_accept(as_result);
      if (!link) co_return;
      group.spawn(serve(w, std::move(*link)));
    }
  });
  s.close_door = {};
  CHECK(!v.error());
  CHECK(w->windows.size() == 0);
}

awaitable<void> hash_decode(hash_serving& s, hash_place at) {
  auto w = std::make_shared<worker_state>(co_await asio::this_coro::executor, s, std::move(at));
  auto v = co_await with(task_group{}, [&](task_group& group) {
    for (int i = 0; i < s.requests; ++i) {
      request r{.id = static_cast<std::uint32_t>(i)};
      const auto length = 1 + (s.seed * 7 + static_cast<std::uint64_t>(i) * 11) % s.most_prompt;
      for (std::uint64_t t = 0; t < length; ++t)
        r.prompt.push_back(static_cast<std::uint32_t>((s.seed * 31 + r.id * 17 + t * 7919) % 50'000));
      group.spawn(ask(w, std::move(r)));
    }
  });
  CHECK(!v.error());
  CHECK(w->windows.size() == 0);
  while (w->pool.available() < w->at.blocks)  // what a reader or writer still had comes back
    co_await clock::of(co_await asio::this_coro::executor).async_wait_for(10ms);
}

awaitable<void> hash_stop(hash_place at) {
  window_table none(co_await asio::this_coro::executor);
  auto link = co_await async_connect(none, at.connect, at.link);
  co_await link.async_send(request{.how = request::stop}.encode());
  (void)co_await link.async_closed(as_result);
}

void check_end(const hash_serving& s) {
  CHECK(s.answered + s.given_up == static_cast<std::size_t>(s.requests));
  CHECK(s.ledger.held() == 0);
  CHECK(s.leaked == 0);
}

awaitable<void> hash_both(hash_serving& s, hash_place prefill, hash_place decode) {
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(hash_prefill(s, std::move(prefill)));
    while (s.url.empty()) co_await asio::post(asio::deferred);
    co_await hash_decode(s, std::move(decode));
    s.close_door();
  });
  CHECK(!v.error());
  check_end(s);
}

}  // namespace cokv::test

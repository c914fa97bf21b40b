#include "cluster/answer_copies.hpp"

#include "cluster/answer_copies_state.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {
namespace {

std::uint64_t number_of(std::string_view text) {
  sha256 hash;
  hash.update(text);
  const auto digest = hash.finish();
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < 8; ++i) out = out << 8 | std::to_integer<std::uint64_t>(digest.bytes[i]);
  return out;
}

}  // namespace

replicator::worker_id worker_of(std::string_view life) { return number_of("worker " + std::string(life)); }

replicator::microbatch_id copy_of(const std::string& life, const std::string& id, std::uint32_t attempt,
                                  std::uint32_t round, std::size_t stretch) {
  return number_of("copy " + life + ' ' + id + ' ' + std::to_string(attempt) + ' ' + std::to_string(round) + ' ' +
                   std::to_string(stretch));
}

block_key root_of(const kv_wire& w) {
  return root_key("copies of " + std::to_string(w.layers) + '/' + std::to_string(w.kv_heads) + '/' +
                  std::to_string(w.head_dim) + '/' + std::to_string(w.block_tokens) + '/' +
                  std::string(to_string(w.type)));
}

void answer_copies::state::tell_all() {
  for (auto* f : all) f->note();
}

answer_copies::answer_copies(window_table windows, device where, link_options greeting, copies_options o)
    : state_(std::make_shared<state>(std::move(windows), std::move(where), std::move(o))) {
  auto& s = *state_;
  if (auto made = s.where.make_stream({.name = "copies", .priority = -1})) s.moves = std::move(*made);
  s.unpacks = std::make_unique<packer>(s.where, s.moves);
  const auto kept = std::make_shared<std::uint64_t>(0);
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    auto packs = std::make_unique<packer>(s.where, s.moves);
    const auto* through = packs->get();
    s.ranks[r] = std::make_shared<rank>(
        s.windows, r, greeting, s.options,
        replicator_options{.max_ahead = std::numeric_limits<std::uint32_t>::max(),
                           .limit = s.options.limit,
                           .kept = kept,
                           .through = through,
                           .acknowledged =
                               [raw = &s](replicator::microbatch_id m, std::uint32_t, std::uint64_t) {
                                 if (const auto f = raw->by_copy.find(m); f != raw->by_copy.end()) f->second->note();
                               }},
        std::move(packs));
  }
}

answer_copies::~answer_copies() { close(); }

std::uint64_t answer_copies::epoch() const noexcept { return state_->place.epoch; }

bool answer_copies::stand(ring_place p) {
  auto& s = *state_;
  if (p.epoch <= s.place.epoch) return p.epoch == s.place.epoch;
  s.place = std::move(p);
  for (std::uint32_t r = 0; r < s.ranks.size(); ++r) {
    auto& one = *s.ranks[r];
    const auto next = r < s.place.successors.size() ? std::optional(s.place.successors[r]) : std::nullopt;
    const bool another = next && (!one.successor || one.successor->life != next->life);
    one.successor = next;
    if (another) one.up = false;
    one.copies.follow(s.place.epoch, next ? std::optional(worker_of(next->life)) : std::nullopt);
    if (another)
      for (auto* f : s.all) f->begin_anew(r);
    one.changed.tell();
  }
  s.tell_all();
  return true;
}

awaitable<void> answer_copies::run() {
  const auto s = state_;
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (auto& r : s->ranks) group.spawn(carry(r));
    group.spawn(tidy());
    (void)co_await s->closing.async_receive(as_result);
    group.cancel();
  });
  for (auto& r : s->ranks) r->links.close();
}

void answer_copies::close() { state_->closing.close(); }

awaitable<void> answer_copies::carry(std::shared_ptr<rank> r) {
  const auto s = state_;
  auto& time = clock::of(s->ex());
  for (;;) {
    if (!r->successor) {
      co_await r->changed.async_wait(asio::deferred);
      continue;
    }
    const auto to = *r->successor;
    result<peer_link> link = errc::unavailable;
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> {
        while (r->successor == to) co_await r->changed.async_wait(asio::deferred);
        group.cancel();
      });
      link = co_await r->links.get(to.life, to.links);
      group.cancel();
    });
    if (r->successor != to) continue;
    error_code why = link ? error_code() : link.error();
    if (link) {
      r->up = true;
      s->tell_all();
      (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        // What is on its way to one that stands still would hold up the next.
        group.spawn([&]() -> awaitable<void> {
          while (r->successor == to) co_await r->changed.async_wait(asio::deferred);
          link->close();
        });
        why = co_await r->copies.send(*link);
        group.cancel();
      });
      r->up = false;
      s->tell_all();
      if (why) link->close();
    }
    if (why) co_await time.async_wait_for(try_again, asio::deferred);
  }
}

// Copies whose sequences have ended, or whose worker was lost, when nobody asked for them in time.
awaitable<void> answer_copies::tidy() {
  const auto s = state_;
  auto& time = clock::of(s->ex());
  for (;;) {
    co_await time.async_wait_for(s->options.keep_lost / 4, asio::deferred);
    for (auto& r : s->ranks) r->copies.forget_unfed(s->options.keep_lost);
  }
}

awaitable<void> answer_copies::keep(peer_link from) {
  const auto s = state_;
  const auto name = from.peer().name;
  for (auto& r : s->ranks)
    if (name.starts_with("ring/" + std::to_string(r->number) + '/')) {
      (void)co_await r->copies.keep(from, worker_of(name.substr(name.rfind('/') + 1)));
      break;
    }
}

std::shared_ptr<answer_follower> answer_copies::follow(std::string id, std::uint32_t attempt, std::uint32_t prompt) {
  if (state_->place.replicas == 0) return nullptr;
  return std::make_shared<followed>(state_, std::move(id), attempt, prompt);
}

copies_counters answer_copies::counters() const {
  copies_counters c{.followed = state_->all.size(),
                    .copies = 0,
                    .bytes_kept = 0,
                    .waited_in_vain = state_->waited_in_vain,
                    .restored_tokens = state_->restored};
  for (auto& r : state_->ranks) c.copies += r->copies.copies();
  c.bytes_kept = state_->ranks[0]->copies.bytes_kept();
  return c;
}

}  // namespace cokv::cluster

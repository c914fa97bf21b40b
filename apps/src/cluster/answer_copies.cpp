#include "cluster/answer_copies.hpp"

#include <algorithm>
#include <array>
#include <deque>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {
namespace {

constexpr std::size_t staging_bytes = 256 << 10, staging_buffers = 8;
constexpr std::uint64_t most_at_once = 1 << 20;  // bytes that are unpacked in a row
constexpr auto ring_silence = std::chrono::seconds(3);
constexpr auto try_again = std::chrono::milliseconds(100);

std::uint64_t number_of(std::string_view text) {
  sha256 hash;
  hash.update(text);
  const auto digest = hash.finish();
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < 8; ++i) out = out << 8 | std::to_integer<std::uint64_t>(digest.bytes[i]);
  return out;
}

replicator::worker_id worker_of(std::string_view life) { return number_of("worker " + std::string(life)); }

replicator::microbatch_id copy_of(const std::string& id, std::uint32_t attempt, std::uint32_t round,
                                  std::size_t stretch) {
  return number_of("copy " + id + ' ' + std::to_string(attempt) + ' ' + std::to_string(round) + ' ' +
                   std::to_string(stretch));
}

std::uint64_t token_bytes(const kv_wire& w) {
  return std::uint64_t{2} * w.layers * w.kv_heads * w.head_dim * size_of(w.type);
}

// Of no tokens: KV of another shape has other names.
block_key root_of(const kv_wire& w) {
  return root_key("copies of " + std::to_string(w.layers) + '/' + std::to_string(w.kv_heads) + '/' +
                  std::to_string(w.head_dim) + '/' + std::to_string(w.block_tokens) + '/' +
                  std::string(to_string(w.type)));
}

std::string ring_name(std::size_t rank, const std::string& life) { return "ring/" + std::to_string(rank) + '/' + life; }

}  // namespace

// Staging and its turns: of one user, so that a successor that stands still holds up nobody else.
struct packer {
  packer(device& where, const stream& moves, memory_kind kind) {
    if (auto made = staging_pool::make(where, staging_bytes, staging_buffers, kind); made && moves) {
      staging.emplace(std::move(*made));
      through.emplace(packing{*staging, moves});
    }
  }
  packer(const packer&) = delete;
  const packing* get() const { return through ? &*through : nullptr; }

  std::optional<staging_pool> staging;
  std::optional<packing> through;
};

// Those that are `rank` + 1 places further on in the ring.
struct answer_copies::rank {
  rank(const window_table& windows, std::size_t n, link_options greeting, const copies_options& o,
       replicator_options how, std::unique_ptr<packer> packer_of)
      : number(n),
        packs(std::move(packer_of)),
        copies(windows, worker_of(o.life), std::move(how)),
        links(
            windows,
            [&] {
              greeting.name = ring_name(n, o.life);
              greeting.silence = std::min<duration>(greeting.silence, ring_silence);
              return std::move(greeting);
            }(),
            try_again),
        changed(windows.get_executor()) {}

  const std::size_t number;
  const std::unique_ptr<packer> packs;
  replicator copies;
  link_pool links;
  std::optional<ring_member> successor;
  bool up = false;  // it is sent to
  news changed;
};

struct answer_copies::state {
  state(window_table w, device d, copies_options o)
      : windows(std::move(w)), where(std::move(d)), options(std::move(o)), closing(windows.get_executor(), 1) {}

  asio::any_io_executor ex() const { return windows.get_executor(); }
  void tell_all();

  window_table windows;
  device where;
  copies_options options;
  stream moves;
  std::unique_ptr<packer> unpacks;  // what comes back out of copies
  ring_place place;
  std::array<std::shared_ptr<rank>, most_replicas> ranks;
  std::map<replicator::microbatch_id, std::weak_ptr<followed>> by_copy;
  std::map<followed*, std::weak_ptr<followed>> all;
  std::uint64_t waited_in_vain = 0, restored = 0;
  channel<char> closing;
};

class answer_copies::followed final : public follower, public std::enable_shared_from_this<followed> {
 public:
  followed(std::shared_ptr<state> of, std::string id, std::uint32_t attempt, std::uint32_t prompt)
      : s_(std::move(of)),
        id_(std::move(id)),
        attempt_(attempt),
        prompt_(prompt),
        ranks_(s_->place.replicas),
        tag_(root_of(s_->options.wire)),
        changed_(s_->ex()) {}
  ~followed() override {
    forget();
    s_->all.erase(this);
  }

  // Nothing of it may reach the engine: a sequence whose copies fail goes without.
  void computed(index_range tokens, std::span<const token_id> what, sequence_blocks where) override try {
    if (round_ == most_rounds) return;
    tag_ = chain(tag_, what);
    if ((stretches_.empty() || stretches_.back().room < tokens.count) && !open(tokens)) return;
    auto& at = stretches_.back();
    at.room -= tokens.count;
    at.ends.push_back(static_cast<std::uint32_t>(tokens.end()));
    const auto& shape = where.memory.layout().shape();
    slice all(shape, {0, shape.layers()}, where.blocks);
    all.tokens({tokens.first % shape.block_tokens(), tokens.count});
    const replicated_step step{where.memory, {all}};
    for (std::uint32_t r = 0; r < ranks_; ++r) s_->ranks[r]->copies.computed(at.name, step, {}, tag_);
    // So that also what the last step computed is copied when the sequence has ended.
    // Whole blocks stay what they are by being shared, so only those of single tokens are held: a prompt's would be missed
    // by whoever waits for blocks.
    if (tokens.count == 1 && !there(at.ends.back())) held_.emplace_back(at.ends.back(), std::move(where.held));
  } catch (...) {
    forget();
    round_ = most_rounds;
  }

  // What was copied is still right, but the blocks are others': of a copy that is to grow all comes from the new ones.
  void preempted() override {
    forget();
    tag_ = root_of(s_->options.wire);
    if (round_ < most_rounds) ++round_;
  }

  awaitable<void> covered(std::uint32_t tokens) override {
    const auto self = shared_from_this();
    if (there(tokens)) {
      behind_ = false;
      co_return;
    }
    if (!behind_) {
      const auto waited = co_await with_deadline(until(tokens), s_->options.patience);
      if (!waited && waited.error() != errc::deadline) throw boost::system::system_error(waited.error());
      behind_ = !there(tokens);
    }
    if (!behind_) co_return;
    ++s_->waited_in_vain;
    held_.clear();
  }

  // Something of it was kept by a successor, or there is one less, or more.
  void note() {
    while (!held_.empty() && there(held_.front().first)) held_.pop_front();
    changed_.tell();
  }

  // Another successor, that has nothing yet: it is not waited for until it has caught up.
  void begin_anew(std::uint32_t r) {
    if (r >= ranks_) return;
    auto& copies = s_->ranks[r]->copies;
    for (auto& one : stretches_) copies.recovered(one.name, static_cast<std::uint32_t>(one.ends.size()), 0);
    behind_ = true;
    held_.clear();
  }

 private:
  struct stretch {
    replicator::microbatch_id name = 0;
    std::uint32_t room = 0;           // tokens
    std::vector<std::uint32_t> ends;  // of its steps, as tokens of the sequence
  };

  // False: the name is in use, and this sequence goes without copies.
  bool open(index_range tokens) {
    const auto more = std::max(tokens.count, tokens.first < prompt_ ? prompt_ - tokens.first : 0);
    const auto room = std::max(more + (tokens.first < prompt_ ? s_->options.stretch : 0), s_->options.stretch);
    const auto name = copy_of(id_, attempt_, round_, stretches_.size());
    if (!s_->by_copy.try_emplace(name, weak_from_this()).second) {
      round_ = most_rounds;
      return false;
    }
    stretches_.push_back({name, room, {}});
    for (std::uint32_t r = 0; r < ranks_; ++r)
      s_->ranks[r]->copies.open(name, std::uint64_t{room} * token_bytes(s_->options.wire));
    return true;
  }

  void forget() {
    for (auto& one : stretches_) {
      for (std::uint32_t r = 0; r < ranks_; ++r) s_->ranks[r]->copies.close(one.name);
      s_->by_copy.erase(one.name);
    }
    stretches_.clear();
    held_.clear();
  }

  std::uint32_t tokens_at(const replicator& copies) const {
    std::uint32_t out = 0;
    for (auto& one : stretches_) {
      const auto kept = copies.acknowledged(one.name);
      if (kept > 0) out = one.ends[kept - 1];
      if (kept < one.ends.size()) break;
    }
    return out;
  }
  bool there(std::uint32_t tokens) const {
    if (round_ == most_rounds) return true;
    for (std::uint32_t r = 0; r < ranks_; ++r)
      if (s_->ranks[r]->up && tokens_at(s_->ranks[r]->copies) < tokens) return false;
    return true;
  }
  awaitable<void> until(std::uint32_t tokens) {
    while (!there(tokens)) co_await changed_.async_wait(asio::deferred);
  }

  const std::shared_ptr<state> s_;
  const std::string id_;
  const std::uint32_t attempt_, prompt_, ranks_;
  block_key tag_;
  std::vector<stretch> stretches_;
  std::uint32_t round_ = 0;
  bool behind_ = false;
  std::deque<std::pair<std::uint32_t, std::vector<block_hold>>> held_;  // of steps, by their ends, until they are kept
  news changed_;
};

void answer_copies::state::tell_all() {
  for (auto& [at, weak] : all)
    if (auto f = weak.lock()) f->note();
}

answer_copies::answer_copies(window_table windows, device where, link_options greeting, copies_options o)
    : state_(std::make_shared<state>(std::move(windows), std::move(where), std::move(o))) {
  auto& s = *state_;
  if (auto made = s.where.make_stream({.name = "copies", .priority = -1})) s.moves = std::move(*made);
  const auto kind = s.where.name() == "cpu" ? memory_kind::host : memory_kind::pinned;
  s.unpacks = std::make_unique<packer>(s.where, s.moves, kind);
  const auto kept = std::make_shared<std::uint64_t>(0);
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    auto packs = std::make_unique<packer>(s.where, s.moves, kind);
    const auto* through = packs->get();
    s.ranks[r] = std::make_shared<rank>(
        s.windows, r, greeting, s.options,
        replicator_options{.max_ahead = std::numeric_limits<std::uint32_t>::max(),
                           .limit = s.options.limit,
                           .kept = kept,
                           .through = through,
                           .acknowledged =
                               [raw = &s](replicator::microbatch_id m, std::uint32_t, std::uint64_t) {
                                 const auto found = raw->by_copy.find(m);
                                 const auto f = found == raw->by_copy.end() ? nullptr : found->second.lock();
                                 if (f) f->note();
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
      for (auto& [at, weak] : s.all)
        if (auto f = weak.lock()) f->begin_anew(r);
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

std::shared_ptr<answer_copies::follower> answer_copies::follow(std::string id, std::uint32_t attempt,
                                                               std::uint32_t prompt) {
  if (state_->place.replicas == 0) return nullptr;
  auto out = std::make_shared<followed>(state_, std::move(id), attempt, prompt);
  state_->all[out.get()] = out;
  return out;
}

awaitable<answer_copies::taken> answer_copies::take(std::string id, lost_answer lost, std::vector<token_id> tokens) {
  const auto s = state_;
  const auto owner = worker_of(lost.life);
  const auto each = token_bytes(s->options.wire);
  const auto most = tokens.empty() ? 0 : static_cast<std::uint32_t>(tokens.size() - 1);
  for (auto round = most_rounds; round-- > 0;)
    for (auto& r : s->ranks) {
      taken out;
      auto tag = root_of(s->options.wire);
      for (std::size_t i = 0;; ++i) {
        auto copy = co_await r->copies.take(owner, copy_of(id, lost.attempt, round, i));
        if (!copy) break;
        taken::stretch part{out.tokens, {std::move(copy->memory), {}}};
        std::uint64_t begin = 0;
        for (auto& step : copy->steps) {
          const auto n = (step.end - begin) / each;
          if ((step.end - begin) % each != 0 || out.tokens + n > most) break;
          const auto next = chain(tag, std::span(tokens).subspan(out.tokens, n));
          if (next != step.tag) break;
          tag = next;
          begin = step.end;
          out.tokens += static_cast<std::uint32_t>(n);
          part.what.steps.push_back(step);
        }
        const bool whole = part.what.steps.size() == copy->steps.size();
        if (!part.what.steps.empty()) out.parts.push_back(std::move(part));
        if (!whole) break;
      }
      if (out.tokens > 0) co_return out;
    }
  co_return taken();
}

// Packed steps lie layer by layer; what the room has already is somebody else's too, and is left out of each layer.
awaitable<error_code> answer_copies::restore(taken from, kv_room into) {
  const auto s = state_;
  const auto& shape = into.memory.layout().shape();
  const auto bt = shape.block_tokens();
  const auto each = token_bytes(s->options.wire), in_layer = each / shape.layers();
  const scatter_options how{.through = s->unpacks->get(), .algorithm = digest_algorithm::none};
  bool here = true;  // the host reaches the room
  std::uint64_t at_once = 0;
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    semaphore room(s->ex(), staging_buffers);
    const auto bring = [&](const buffer& packed, std::uint64_t offset, index_range layers,
                           index_range tokens) -> awaitable<error_code> {
      const auto begin = tokens.first / bt, end = (static_cast<std::uint32_t>(tokens.end()) + bt - 1) / bt;
      slice what(shape, layers, {into.blocks.begin() + begin, into.blocks.begin() + end});
      what.tokens({tokens.first % bt, tokens.count});
      if (here) {
        const auto bytes = what.bytes();
        const auto ec = unpack_here(into.memory, what, packed.bytes().subspan(offset, bytes));
        if ((at_once += bytes) > most_at_once) {
          at_once = 0;
          co_await asio::post(s->ex(), asio::deferred);  // others have a turn
        }
        if (ec != errc::wrong_device) co_return ec;
        here = false;
      }
      permit turn = co_await room.async_acquire();
      group.spawn([](source out, std::uint64_t offset, kv_view to, slice what, scatter_options how,
                     permit) -> awaitable<error_code> {
        auto moved = co_await async_scatter(out, offset, to, what, how, as_result);
        co_return moved ? error_code() : moved.error();
      }(local_window(packed, s->moves).from(), offset, into.memory, std::move(what), how, std::move(turn)));
      co_return error_code();
    };
    for (auto& part : from.parts) {
      std::uint64_t begin = 0;
      auto at = part.first;
      for (auto& step : part.what.steps) {
        const auto n = static_cast<std::uint32_t>((step.end - begin) / each);
        const auto skip = std::min(n, into.first > at ? into.first - at : 0);
        const index_range left{at + skip, n - skip};
        error_code ec;
        if (skip == 0) ec = co_await bring(part.what.memory, begin, {0, shape.layers()}, left);
        for (std::uint32_t l = 0; !ec && skip > 0 && left.count > 0 && l < shape.layers(); ++l)
          ec = co_await bring(part.what.memory, begin + l * n * in_layer + skip * in_layer, {l, 1}, left);
        if (ec) co_return ec;
        begin = step.end;
        at += n;
      }
    }
    co_return error_code();
  });
  if (!v.error()) s->restored += from.tokens;
  co_return v.error();
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

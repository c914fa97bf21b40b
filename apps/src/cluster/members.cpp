#include "cluster/members.hpp"

#include <boost/json/serialize.hpp>

#include "cluster/news.hpp"
#include "cluster/worker_refusal.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"

namespace cokv::cluster {

struct members::state {
  state(health_options health, std::optional<kv_wire> model, std::uint32_t replicas)
      : table(health, model), ring(replicas) {}
  worker_table table;
  ring_book ring;
  prefix_index index;
  std::map<worker_table::id, std::shared_ptr<member>> all;
  std::map<std::string, std::string> let_go;  // by URL, which life
};

struct members::member {
  member(asio::any_io_executor ex, worker_table::id number, http::server_url url, const http::client_options& how)
      : id(number), at(std::move(url)), name(at.to_string()), asks(ex, at, how), suspected(ex) {
    renew(ex, how);
  }
  // For the next life. Whoever uses the one before gets an error.
  void renew(const asio::any_io_executor& ex, const http::client_options& how) {
    end();
    calls = std::make_shared<http::client>(ex, at, how);
    lost = std::make_shared<channel<char>>(ex, 1);
  }
  void end() {
    if (calls) calls->close();
    if (lost) lost->close();
  }

  const worker_table::id id;
  const http::server_url at;
  const std::string name;
  http::client asks;  // apart: requests must not keep it from being asked
  news suspected;
  std::shared_ptr<http::client> calls;
  std::shared_ptr<channel<char>> lost;
  std::optional<time_point> joined;  // by itself, and when it last said so
  std::string joined_as;             // in which life
  std::string problem;
  std::pair<std::string, std::uint64_t> told_ring;  // which life of it, and the last epoch
};

namespace {

// What a worker said, or why it said nothing of use.
parsed<worker_facts> facts_of(const http::reply& r) {
  if (auto no = why_no_worker(r.code)) return http::problem{.message = std::move(*no)};
  if (r.code == 409) return http::problem{.message = "has promised another router not to take calls of this one"};
  if (r.code != 200) return http::problem{.message = "answers with status " + std::to_string(r.code)};
  const auto v = http::parse_json(r.body);
  return v ? read_worker(*v) : parsed<worker_facts>(v.error());
}

}  // namespace

members::seat::seat(std::shared_ptr<state> of, std::shared_ptr<member> at, std::uint64_t tokens,
                    std::vector<block_key> keys)
    : of_(std::move(of)),
      at_(std::move(at)),
      tokens_(tokens),
      keys_(std::move(keys)),
      calls_(at_->calls),
      lost_(at_->lost),
      self_(of_->table.find(at_->id)->facts.self),
      hearings_(of_->table.find(at_->id)->hearings) {
  of_->table.give(at_->id, tokens_);
  of_->index.expect(at_->id, keys_);
}

members::seat::~seat() { leave(false); }
void members::seat::done() { leave(true); }

// What is there already nobody tells of again: that it is, is known by the prompt being there.
void members::seat::leave(bool done) {
  if (!std::exchange(counts_, false)) return;
  const auto* w = of_->table.find(at_->id);
  of_->table.ended(at_->id, tokens_, w && w->hearings != hearings_);
  if (done && lost_->is_open()) of_->index.stored(at_->id, "device", keys_);
  of_->index.unexpect(at_->id, keys_);
}

worker_table::id members::seat::id() const noexcept { return at_->id; }
const std::string& members::seat::url() const noexcept { return at_->name; }
void members::seat::suspect() {
  of_->table.doubt(at_->id);
  at_->suspected.tell();
}
bool members::seat::doubted() const {
  const auto* w = of_->table.find(at_->id);
  return w && w->doubted && w->facts.self.life == self_.life;
}

members::members(asio::any_io_executor ex, health_options health, http::client_options how,
                 std::optional<kv_wire> model, std::uint32_t replicas, placement_options placement)
    : ex_(ex),
      state_(std::make_shared<state>(health, model, replicas)),
      how_(std::move(how)),
      placement_(placement),
      closing_(std::move(ex), 1) {}

members::~members() {
  for (auto& [id, m] : state_->all) m->end();
}

const worker_table& members::table() const noexcept { return state_->table; }
std::uint64_t members::ring_epoch() const noexcept { return state_->ring.epoch(); }

void members::reign(std::uint64_t router_epoch) {
  rings_ = true;
  state_->ring.reign(router_epoch);
  for (auto& [id, m] : state_->all) m->suspected.tell();
}

const ring_book& members::ring() const noexcept { return state_->ring; }

void members::close() { closing_.close(); }

error_code members::add(const std::string& url) {
  const auto at = http::parse_server_url(url);
  if (!at) return at.error();
  state_->let_go.erase(at->to_string());
  const auto ec = add(*at);
  state_->all.at(*state_->table.find(at->to_string()))->joined.reset();
  return ec;
}

error_code members::join(const std::string& url, const std::string& life) {
  const auto at = http::parse_server_url(url);
  if (!at) return at.error();
  const auto name = at->to_string();
  if (const auto found = state_->let_go.find(name); found != state_->let_go.end() && found->second == life)
    return errc::closed;
  const auto known = state_->table.find(name);
  const bool by_itself = !known || state_->all.at(*known)->joined;
  const auto ec = add(*at);
  auto& m = *state_->all.at(*state_->table.find(name));
  m.joined_as = life;
  if (by_itself) m.joined = clock::of(ex_).now();
  return ec;
}

error_code members::add(const http::server_url& at) {
  const auto id = state_->table.add(at.to_string());
  auto& m = state_->all[id];
  if (m) {
    stand();  // it may have been leaving
    return {};
  }
  m = std::make_shared<member>(ex_, id, at, how_);
  if (group_) group_->spawn(watch(m));
  return {};
}

bool members::leave(const std::string& url) {
  const auto at = http::parse_server_url(url);
  if (!at || !state_->table.leave(at->to_string())) return false;
  constexpr std::size_t most = 1024;
  const auto id = *state_->table.find(at->to_string());
  const auto& said = state_->all.at(id)->joined_as;  // also where nothing was heard of it yet
  if (const auto& life = said.empty() ? state_->table.find(id)->facts.self.life : said; !life.empty()) {
    if (state_->let_go.size() == most) state_->let_go.erase(state_->let_go.begin());
    state_->let_go[at->to_string()] = life;
  }
  state_->all.at(*state_->table.find(at->to_string()))->suspected.tell();
  stand();
  return true;
}

awaitable<void> members::run() {
  (void)co_await with(task_group{}, [this](task_group& group) -> awaitable<void> {
    group_ = &group;
    for (const auto all = state_->all; auto& [id, m] : all) group.spawn(watch(m));  // which may remove itself
    (void)co_await closing_.async_receive(as_result);
    group_ = nullptr;
    group.cancel();
  });
  group_ = nullptr;
  for (auto& [id, m] : state_->all) m->end(), m->asks.close();
}

void members::settle(member& m, worker_change c) {
  if (c == worker_change::none) return;
  if (c != worker_change::came) {
    m.renew(ex_, how_);
    state_->index.clear(m.id);
  }
  const bool begins = c == worker_change::came || c == worker_change::replaced;
  if (begins && placement_.by != policy::least_loaded && group_) group_->spawn(follow(state_->all.at(m.id)));
  if (on_change) on_change(*state_->table.find(m.id), c);
  stand();
}

// What KV this life of it has. Of a worker that does not tell, what was computed there is known, and never forgotten.
awaitable<void> members::follow(std::shared_ptr<member> m) {
  const auto s = state_;
  const auto calls = m->calls;
  const auto lost = m->lost;
  for (std::string last; lost->is_open();) {
    const auto ended = co_await follow_kv(*calls, last, [&](const kv_event& e) {
      if (lost->is_open()) apply(e, m->id, s->index);
    });
    if (ended == errc::unsupported || ended == asio::error::operation_aborted) co_return;
    (void)co_await clock::of(ex_).async_wait_for(s->table.health().period, as_result);
  }
}

// Those that decode, as they are now: each is told where it stands as soon as it is heard again. Of a model in parts, no worker has
// all of a sequence's KV to copy.
void members::stand() {
  std::map<worker_table::id, ring_book::standing> here;
  for (const auto& [id, w] : state_->table.all())
    if (w.usable(worker_role::decode) && w.facts.self.topology.workers() == 1)
      here[id] = {w.facts.self.life, w.facts.self.wire};
  if (state_->ring.stand(std::move(here)))
    for (auto& [id, m] : state_->all) m->suspected.tell();
}

awaitable<void> members::tell_ring(std::shared_ptr<member> m) {
  const auto s = state_;
  const auto* w = s->table.find(m->id);
  // Of another router, or of one before this. The others are told when they are asked next: two must not race each other.
  if (m->told_ring != std::pair(w->facts.self.life, w->facts.epoch)) s->ring.heard(w->facts.epoch);
  if (!s->ring.contains(m->id) || w->facts.epoch >= s->ring.epoch()) co_return;
  m->told_ring = {w->facts.self.life, s->ring.epoch()};
  const auto place = s->ring.place_of(m->id, [&](worker_table::id one) { return s->table.find(one)->facts.links; });
  (void)co_await with_deadline(m->asks.ask({.method = http::verb::put,
                                            .target = "/v1/ring",
                                            .body = boost::json::serialize(to_json(place)),
                                            .repeatable = true}),
                               s->table.patience(m->id, clock::of(ex_).now()));
}

awaitable<void> members::watch(std::shared_ptr<member> m) {
  const auto s = state_;
  auto& time = clock::of(ex_);
  for (;;) {
    // Who leaves no longer takes questions, but ends what it has: its requests see for themselves.
    if (const auto* w = s->table.find(m->id); w->leaving) {
      if (w->requests == 0 || w->state != presence::here) break;
      (void)co_await with_deadline(m->suspected.async_wait(), s->table.health().period);
      continue;
    }
    auto told = co_await with_deadline(m->asks.get("/v1/worker"), s->table.patience(m->id, time.now()));
    if (!told && told.error() == asio::error::operation_aborted) co_return;
    const auto now = time.now();
    auto facts = told ? facts_of(*told) : parsed<worker_facts>(http::problem{.message = told.error().message()});
    if (facts) {
      m->problem.clear();
      settle(*m, s->table.heard(m->id, std::move(*facts), now));
      if (rings_ && s->ring.replicas() > 0) co_await tell_ring(m);
    } else {
      if (told && told->code == 409 && on_refusal) on_refusal(m->name);
      const bool refused = told ? told->code == 404 : told.error() == asio::error::connection_refused;
      if (std::exchange(m->problem, facts.error().message) != m->problem && on_problem)
        on_problem(m->name, m->problem, told && told->code < 500 && told->code != 409);
      settle(*m, s->table.silent(m->id, refused, now));
      const auto* w = s->table.find(m->id);
      if (m->joined && now - *m->joined > forgotten_after && w->state != presence::here && w->requests == 0) break;
    }
    (void)co_await with_deadline(m->suspected.async_wait(), s->table.health().period);
  }
  m->end();
  s->all.erase(m->id);
  s->ring.forget(m->id);
  s->index.clear(m->id);
  s->table.remove(m->id);
  stand();
}

std::unique_ptr<members::seat> members::holder_for(worker_table::id lost, const std::string& life, std::uint64_t tokens,
                                                   const std::set<worker_table::id>& without) {
  for (auto id : state_->ring.holders(lost)) {
    const auto* w = state_->table.find(id);
    if (!group_ || without.contains(id) || !w || !w->usable(worker_role::decode)) continue;
    return std::make_unique<seat>(state_, state_->all.at(id), tokens);
  }
  // In a cache every worker of its kind finds them, or none does: two are asked, for one may be lost as well.
  const auto* gone = state_->table.find(lost);
  if (!group_ || !gone || gone->facts.copies_at.empty() || without.size() >= 2) return nullptr;
  const worker_table::worker* best = nullptr;
  worker_table::id at = 0;
  for (const auto& [id, w] : state_->table.all())
    if (!without.contains(id) && (id != lost || w.facts.self.life != life) && w.usable(worker_role::decode) &&
        w.facts.copies_at == gone->facts.copies_at && w.facts.self.wire == gone->facts.self.wire &&
        (!best || w.tokens < best->tokens))
      best = &w, at = id;
  return best ? std::make_unique<seat>(state_, state_->all.at(at), tokens) : nullptr;
}

std::unique_ptr<members::seat> members::seat_at(worker_table::id at, std::uint64_t tokens) {
  const auto* w = state_->table.find(at);
  if (!group_ || !w || w->state != presence::here) return nullptr;
  return std::make_unique<seat>(state_, state_->all.at(at), tokens);
}

prompt_keys members::keys_of(std::span<const token_id> prompt, std::string_view salt) const {
  prompt_keys out;
  if (placement_.by == policy::least_loaded) return out;
  for (const auto block_tokens : state_->table.block_sizes())
    out.emplace(block_tokens, chain_keys(prompt, block_tokens, salt));
  return out;
}

std::unique_ptr<members::seat> members::seat_for(const placement_wish& wish,
                                                 const std::set<worker_table::id>& without) {
  const auto& s = *state_;
  const auto id = group_ ? place(s.table, s.index, wish, placement_, without) : std::nullopt;
  if (!id) return nullptr;
  const auto load = wish.what == worker_role::prefill ? wish.prompt : wish.length;
  const auto& w = *s.table.find(*id);
  const auto keys = wish.keys_for(w);
  return std::make_unique<seat>(state_, s.all.at(*id), load - tokens_there(w, *id, s.index, wish),
                                std::vector(keys.begin(), keys.end()));
}

}  // namespace cokv::cluster

#include "cluster/rank_links.hpp"

#include <spdlog/spdlog.h>

#include <array>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <optional>

#include "cluster/fields.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"
#include "random_id.hpp"

namespace cokv::cluster {
namespace json = boost::json;
namespace {

using namespace std::chrono_literals;

constexpr std::array purposes{"plan", "rows", "sum", "kv"};
constexpr auto try_again = 200ms;
constexpr auto tell_after = 3s;
constexpr std::size_t most_told = 64;
constexpr std::uint32_t most = 1u << 30;

// What the leader says first.
struct beginning {
  std::string time;
  std::string fingerprint;
  stage_sizes sizes;
  bool by_mpi = false;  // that ranks add up
};

link_message encode(const beginning& b) {
  const auto& s = b.sizes;
  const auto text = json::serialize(json::object{{"time", b.time},
                                                 {"fingerprint", b.fingerprint},
                                                 {"sums_by_mpi", b.by_mpi},
                                                 {"kv_blocks", s.kv_blocks},
                                                 {"block_tokens", s.block_tokens},
                                                 {"max_batched_tokens", s.max_batched_tokens},
                                                 {"max_running", s.max_running},
                                                 {"max_requests", s.max_requests},
                                                 {"max_sequence", s.max_sequence},
                                                 {"microbatches", s.microbatches}});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string_view text_of(const link_message& m) { return {reinterpret_cast<const char*>(m.data()), m.size()}; }

std::optional<beginning> decode(const link_message& m) {
  const auto v = http::parse_json(text_of(m));
  if (!v) return std::nullopt;
  fields f(*v, "beginning");
  beginning b;
  b.time = f.id("time");
  b.fingerprint = f.id("fingerprint");
  b.by_mpi = f.flag("sums_by_mpi");
  struct bound {
    std::uint32_t stage_sizes::* to;
    const char* name;
    std::uint32_t most;
  };
  for (auto [to, name, limit] :
       {bound{&stage_sizes::kv_blocks, "kv_blocks", most}, bound{&stage_sizes::block_tokens, "block_tokens", 4096},
        bound{&stage_sizes::max_batched_tokens, "max_batched_tokens", most},
        bound{&stage_sizes::max_running, "max_running", most}, bound{&stage_sizes::max_requests, "max_requests", most},
        bound{&stage_sizes::max_sequence, "max_sequence", most}, bound{&stage_sizes::microbatches, "microbatches", 64}})
    b.sizes.*to = static_cast<std::uint32_t>(f.number(name, limit, 1));
  if (f.end()) return std::nullopt;
  return b;
}

// The answer to it, when its links are there.
link_message ready(const std::string& time) {
  const auto bytes = std::as_bytes(std::span(time));
  return {bytes.begin(), bytes.end()};
}

// Is told of changes, as long as it lives.
struct waits {
  waits(std::shared_ptr<std::list<news*>> all, news& n) : in(std::move(all)), at(in->insert(in->end(), &n)) {}
  waits(const waits&) = delete;
  ~waits() { in->erase(at); }
  std::shared_ptr<std::list<news*>> in;
  std::list<news*>::iterator at;
};

link_options named(link_options o, std::string name) {
  o.name = std::move(name);
  return o;
}

}  // namespace

rank_links::rank_links(window_table windows, rank_options options)
    : windows_(std::move(windows)),
      options_(std::move(options)),
      life_(random_id()),
      door_(windows_, named(options_.greeting, name_of(purpose::plan, life_))) {
  door_.on("rank/", [this](peer_link l) { return keep(std::move(l)); });
}

std::string rank_links::name_of(purpose what, std::string_view time) const {
  return "rank/" + std::to_string(options_.self) + '/' + purposes[static_cast<std::size_t>(what)] + '/' +
         std::string(time);
}

void rank_links::close() {
  closed_ = true;
  door_.close();
  arrived_.clear();
  tell_all();
}

void rank_links::tell_all() {
  for (auto* n : *waiting_) n->tell();
}

// A later one of the same worker's takes an earlier one's place.
awaitable<void> rank_links::keep(peer_link link) {
  const auto& name = link.peer().name;
  std::uint32_t number = 0;
  const auto* at = name.data() + 5;
  const auto [end, ec] = std::from_chars(at, name.data() + name.size(), number);
  const auto rest = std::string_view(end, static_cast<std::size_t>(name.data() + name.size() - end));
  for (std::size_t p = 0; ec == std::errc() && p < purposes.size(); ++p) {
    const auto begins = '/' + std::string(purposes[p]) + '/';
    if (!rest.starts_with(begins) || number >= options_.split.workers() || number == options_.self) continue;
    if (link.peer().topology != options_.greeting.topology) {
      if (refused_.insert({number, link.peer().topology}).second && refused_.size() < most_told)
        spdlog::warn("worker {} at {} is of {}, this one of {}: it is not let in", number, link.peer().address,
                     link.peer().topology, options_.greeting.topology);
      if (refused_.size() == most_told) refused_.clear();
      co_return;
    }
    const place where{static_cast<purpose>(p), number};
    const auto mine = ++arrivals_;
    auto& at_this = arrived_[where];
    if (at_this.link) at_this.link.close();  // its worker has begun anew
    at_this = {mine, std::string(rest.substr(begins.size())), link};
    tell_all();
    (void)co_await link.async_closed(as_result);
    if (const auto now = arrived_.find(where); now != arrived_.end() && now->second.arrival == mine)
      arrived_.erase(now);
    tell_all();
  }
}

std::vector<std::uint32_t> rank_links::missing() const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t n = 1; n < options_.split.workers(); ++n)
    if (!arrived_.contains({purpose::plan, n})) out.push_back(n);
  return out;
}

awaitable<error_code> rank_links::find(place at, std::string time, peer_link& out) {
  news changed(windows_.get_executor());
  const waits here(waiting_, changed);
  for (;;) {
    const auto found = arrived_.find(at);
    if (found != arrived_.end() && found->second.time == time) {
      out = found->second.link;
      co_return error_code();
    }
    if (closed_) co_return errc::closed;
    co_await changed.async_wait(asio::deferred);
  }
}

awaitable<error_code> rank_links::call(std::uint32_t number, purpose what, std::string time, peer_link& out) {
  auto link = co_await async_connect(windows_, options_.urls.at(number), named(options_.greeting, name_of(what, time)),
                                     as_result);
  if (!link) co_return link.error();
  if (!link->peer().name.starts_with("rank/" + std::to_string(number) + '/') ||
      link->peer().topology != options_.greeting.topology)
    co_return errc::namespace_mismatch;
  out = std::move(*link);
  co_return error_code();
}

// The links with those that it computes with: the one of the higher number calls.
awaitable<error_code> rank_links::meet(std::string time, bool by_mpi, stage_links& out) {
  const auto& split = options_.split;
  const auto n = options_.self, degree = split.degree();
  const auto who = split.at(n);
  out.ranks.assign(degree > 1 ? degree : 0, {});
  if (by_mpi && (!options_.sums || !options_.sums->useful())) co_return errc::protocol;
  if (by_mpi) out.sums = options_.sums;
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    if (who.stage > 0) group.spawn(call(n - degree, purpose::rows, time, out.before));
    if (who.stage + 1 < split.depth()) group.spawn(find({purpose::rows, n + degree}, time, out.behind));
    for (std::uint32_t r = 0; r < out.ranks.size(); ++r) {
      const auto other = split.number({who.stage, r});
      if (r < who.rank) group.spawn(call(other, purpose::sum, time, out.ranks[r]));
      if (r > who.rank) group.spawn(find({purpose::sum, other}, time, out.ranks[r]));
    }
  });
  co_return v.error();
}

awaitable<error_code> rank_links::gather_once(const stage_sizes& sizes, const id256& fingerprint, gathered& all) {
  auto& out = all.links;
  const auto time = random_id();
  const bool by_mpi = options_.sums && !summed_;
  out.workers.assign(options_.split.workers(), {});
  for (std::uint32_t n = 1; n < out.workers.size(); ++n) out.workers[n] = arrived_.at({purpose::plan, n}).link;
  if (options_.kv) all.kv.assign(options_.split.workers(), {});
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    group.spawn(meet(time, by_mpi, out));
    for (std::uint32_t n = 1; n < all.kv.size(); ++n) group.spawn(find({purpose::kv, n}, time, all.kv[n]));
    for (std::uint32_t n = 1; n < out.workers.size(); ++n)
      group.spawn([&, n]() -> awaitable<error_code> {
        if (auto told = co_await out.workers[n].async_send(encode({time, fingerprint.hex(), sizes, by_mpi}), as_result);
            !told)
          co_return told.error();
        const auto heard = co_await out.workers[n].async_receive(as_result);
        if (!heard) co_return heard.error();
        co_return *heard == ready(time) ? error_code() : make_error_code(errc::protocol);
      });
  });
  co_return v.error();
}

// Once for the same ones.
void rank_links::tell_missing() {
  std::string text;
  for (auto n : missing()) text += (text.empty() ? "" : ", ") + std::to_string(n) + " (" + options_.urls[n] + ')';
  if (text != told_missing_) spdlog::info("{}: waits for worker {}", options_.greeting.topology, text);
  told_missing_ = std::move(text);
}

awaitable<result<gathered>> rank_links::gather(stage_sizes sizes, id256 fingerprint) {
  news changed(windows_.get_executor());
  const waits here(waiting_, changed);
  for (;;) {
    if (closed_) co_return errc::closed;
    if (!missing().empty()) {
      const auto came = co_await with_deadline(changed.async_wait(), tell_after);
      if (!came && came.error() != errc::deadline) co_return errc::closed;
      if (!came) tell_missing();
      continue;
    }
    std::map<std::uint32_t, std::uint64_t> used;
    for (std::uint32_t n = 1; n < options_.split.workers(); ++n) used[n] = arrived_.at({purpose::plan, n}).arrival;
    gathered out;
    const auto met = co_await with_deadline(gather_once(sizes, fingerprint, out), options_.patience);
    // Used up, or of no use; what has come meanwhile is for the next time.
    for (const auto& [n, arrival] : used) {
      const auto now = arrived_.find({purpose::plan, n});
      if (now == arrived_.end() || now->second.arrival != arrival) continue;
      if (!met) now->second.link.close();
      arrived_.erase(now);
    }
    summed_ = summed_ || met.has_value();
    if (met) co_return out;
    if (met.error() == asio::error::operation_aborted) co_return errc::closed;
    spdlog::warn("the workers of {} did not come together: {}; once more", options_.greeting.topology,
                 met.error().message());
  }
}

awaitable<error_code> rank_links::summon_once(const id256& fingerprint, summons& out) {
  if (auto ec = co_await call(0, purpose::plan, life_, out.links.leader)) co_return ec;
  const auto said = co_await out.links.leader.async_receive(as_result);
  if (!said) co_return said.error();
  const auto b = decode(*said);
  if (!b) co_return errc::protocol;
  if (b->fingerprint != fingerprint.hex()) co_return errc::namespace_mismatch;
  out.sizes = b->sizes;
  const auto met = co_await with_deadline(meet(b->time, b->by_mpi, out.links), options_.patience);
  if (!met) co_return met.error();
  if (options_.kv)
    if (auto ec = co_await call(0, purpose::kv, b->time, out.kv)) co_return ec;
  co_return (co_await out.links.leader.async_send(ready(b->time), as_result)).error();
}

awaitable<result<summons>> rank_links::summoned(id256 fingerprint) {
  auto& time = clock::of(windows_.get_executor());
  for (error_code before; !closed_;) {
    summons out;
    const auto why = co_await summon_once(fingerprint, out);
    if (!why) co_return out;
    if (why == asio::error::operation_aborted) co_return errc::closed;
    if (why != before) spdlog::info("the leader at {}: {}; it is tried again", options_.urls.at(0), why.message());
    before = why;
    co_await time.async_wait_for(try_again, asio::deferred);
  }
  co_return errc::closed;
}

}  // namespace cokv::cluster

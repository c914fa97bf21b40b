#include "cluster/rank_links.hpp"

#include <spdlog/spdlog.h>

#include <array>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <optional>

#include "cluster/fields.hpp"
#include "cokv/kvstream/long_message.hpp"
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

constexpr std::array purposes{"plan", "rows", "sum", "kv", "copies", "spare"};
constexpr auto try_again = 200ms;
constexpr auto gather_again = 50ms;
constexpr auto tell_after = 3s;
constexpr std::size_t most_told = 64;
constexpr std::uint32_t most = 1u << 30;
constexpr std::uint64_t most_copies = std::uint64_t{1} << 50;
constexpr std::size_t most_url = 4096;

std::string_view text_of(const link_message& m) { return {reinterpret_cast<const char*>(m.data()), m.size()}; }

link_message message(const json::object& o) {
  const auto text = json::serialize(o);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The answer to it, when its links are there.
link_message ready(const std::string& time) {
  const auto bytes = std::as_bytes(std::span(time));
  return {bytes.begin(), bytes.end()};
}

// Whose door it is, of who calls the leader: "SEAT.LIFE". Of others, and of nonsense, 0.
std::uint32_t seat_in(std::string_view time) {
  std::uint32_t seat = 0;
  const auto [end, ec] = std::from_chars(time.data(), time.data() + time.size(), seat);
  return ec == std::errc() && end != time.data() + time.size() && *end == '.' ? seat : 0;
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

link_message rank_links::encode(const beginning& b) {
  const auto& s = b.sizes;
  return message({{"time", b.time},
                  {"fingerprint", b.fingerprint.hex()},
                  {"stage", b.stage.hex()},
                  {"sums_by_mpi", b.by_mpi},
                  {"kv_blocks", s.kv_blocks},
                  {"block_tokens", s.block_tokens},
                  {"max_batched_tokens", s.max_batched_tokens},
                  {"max_running", s.max_running},
                  {"max_requests", s.max_requests},
                  {"max_sequence", s.max_sequence},
                  {"microbatches", s.microbatches},
                  {"copies", s.copies},
                  {"host_blocks", s.host_blocks},
                  {"slots", s.slots},
                  {"urls", json_of(b.urls)}});
}

std::optional<rank_links::beginning> rank_links::decode(const link_message& m) const {
  const auto v = http::parse_json(text_of(m));
  if (!v) return std::nullopt;
  fields f(*v, "beginning");
  beginning b;
  b.time = f.id("time");
  for (auto [to, name] : {std::pair{&b.fingerprint, "fingerprint"}, {&b.stage, "stage"}}) {
    const auto id = parse_id256(f.id(name));
    if (!id) return std::nullopt;
    *to = *id;
  }
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
        bound{&stage_sizes::max_sequence, "max_sequence", most},
        bound{&stage_sizes::microbatches, "microbatches", stage_sizes::most_microbatches}})
    b.sizes.*to = static_cast<std::uint32_t>(f.number(name, limit, 1));
  b.sizes.copies = f.number("copies", most_copies);
  b.sizes.host_blocks = static_cast<std::uint32_t>(f.number("host_blocks", most));
  b.sizes.slots = static_cast<std::uint32_t>(f.number("slots", most));
  const bool no_turns = b.sizes.slots == 1 || (b.sizes.slots > 0 && b.sizes.host_blocks > 0);
  b.urls = f.texts("urls", options_.split.workers(), most_url);
  if (f.end() || no_turns || b.urls.size() != options_.split.workers()) return std::nullopt;
  return b;
}

rank_links::rank_links(window_table windows, rank_options options)
    : windows_(std::move(windows)),
      options_(std::move(options)),
      life_(random_id()),
      door_(windows_, named(options_.greeting, name_of(purpose::plan, own_time()))),
      book_({options_.spare_after, options_.patience / 2}) {
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
    const bool spare = static_cast<purpose>(p) == purpose::spare;
    if (!rest.starts_with(begins) || (number >= options_.split.workers()) != spare || number >= options_.urls.size() ||
        number == options_.self)
      continue;
    if (link.peer().topology != options_.greeting.topology) {
      if (refused_.insert({number, link.peer().topology}).second && refused_.size() < most_told)
        spdlog::warn("worker {} at {} is of {}, this one of {}: it is not let in", number, link.peer().address,
                     link.peer().topology, options_.greeting.topology);
      if (refused_.size() == most_told) refused_.clear();
      co_return;
    }
    const auto what = static_cast<purpose>(p);
    auto time = std::string(rest.substr(begins.size()));
    const auto seat = what == purpose::plan ? seat_in(time) : number;
    if (what == purpose::plan || what == purpose::spare) time.clear();
    const place where{what, number, std::move(time)};
    const auto mine = ++arrivals_;
    auto& at_this = arrived_[where];
    // Somebody else waits for that place: this one calls again.
    if (at_this.link && !at_this.link.error() && at_this.seat != seat) co_return link.close();
    if (at_this.link) at_this.link.close();  // its worker has begun anew
    at_this = {mine, link, seat};
    tell_all();
    (void)co_await link.async_closed(as_result);
    if (const auto now = arrived_.find(where); now != arrived_.end() && now->second.arrival == mine)
      arrived_.erase(now);
    if (what == purpose::spare) book_.ended(number);
    tell_all();
  }
}

std::vector<std::uint32_t> rank_links::missing() const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t n = 1; n < options_.split.workers(); ++n)
    if (!arrived_.contains({purpose::plan, n})) out.push_back(n);
  return out;
}

awaitable<error_code> rank_links::find(place at, peer_link& out) {
  news changed(windows_.get_executor());
  const waits here(waiting_, changed);
  for (;;) {
    const auto found = arrived_.find(at);
    if (found != arrived_.end()) {
      out = found->second.link;
      co_return error_code();
    }
    if (closed_) co_return errc::closed;
    co_await changed.async_wait(asio::deferred);
  }
}

awaitable<error_code> rank_links::call(std::uint32_t number, std::string url, purpose what, std::string time,
                                       peer_link& out) {
  auto link =
      co_await async_connect(windows_, std::move(url), named(options_.greeting, name_of(what, time)), as_result);
  if (!link) co_return link.error();
  if (!link->peer().name.starts_with("rank/" + std::to_string(number) + '/') ||
      link->peer().topology != options_.greeting.topology)
    co_return errc::namespace_mismatch;
  out = std::move(*link);
  co_return error_code();
}

// The links with those that it computes with: the one of the higher number calls. For copies whose KV it is calls who keeps it.
awaitable<error_code> rank_links::meet(const beginning& b, stage_links& out) {
  const auto& split = options_.split;
  const auto& time = b.time;
  const auto n = options_.self, degree = split.degree();
  const auto who = split.at(n);
  out.ranks.assign(degree > 1 ? degree : 0, {});
  if (b.by_mpi && (!options_.sums || !options_.sums->useful())) co_return errc::protocol;
  if (b.by_mpi) out.sums = options_.sums;
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    const auto calls = [&](std::uint32_t other, purpose what, peer_link& link) {
      group.spawn(call(other, b.urls[other], what, time, link));
    };
    if (who.stage > 0) calls(n - degree, purpose::rows, out.before);
    if (who.stage + 1 < split.depth()) group.spawn(find({purpose::rows, n + degree, time}, out.behind));
    for (std::uint32_t r = 0; r < out.ranks.size(); ++r) {
      const auto other = split.number({who.stage, r});
      if (r < who.rank) calls(other, purpose::sum, out.ranks[r]);
      if (r > who.rank) group.spawn(find({purpose::sum, other, time}, out.ranks[r]));
    }
    if (b.sizes.copies == 0) return;
    if (n > 0) calls(keeper_of(split, n), purpose::copies, out.keeper);
    if (const auto kept = kept_by(split, n); kept > 0) group.spawn(find({purpose::copies, kept, time}, out.kept));
  });
  co_return v.error();
}

awaitable<error_code> rank_links::gather_once(const stage_sizes& sizes, const model_names& names,
                                              const planner& recover, gathered& all, std::vector<std::string>& doors) {
  auto& out = all.links;
  beginning b{random_id(), names.whole, {}, sizes, options_.sums && !summed_, {options_.urls[seat()]}};
  const auto workers = options_.split.workers();
  out.workers.assign(workers, {});
  for (std::uint32_t n = 1; n < workers; ++n) {
    const auto& from = arrived_.at({purpose::plan, n});
    out.workers[n] = from.link;
    const bool of_spare = from.seat >= workers && from.seat < options_.urls.size();
    b.urls.push_back(options_.urls[of_spare ? from.seat : n]);
  }
  doors = b.urls;
  if (options_.kv) all.kv.assign(workers, {});
  std::vector<stage_holding> said(workers);
  const auto each = [&](auto f) -> awaitable<error_code> {
    const auto v = co_await with(task_group{}, [&](task_group& group) {
      for (std::uint32_t n = 1; n < workers; ++n) group.spawn(f(n));
    });
    co_return v.error();
  };
  const auto told = co_await each([&](std::uint32_t n) -> awaitable<error_code> {
    auto to = b;
    to.stage = names.stages.at(options_.split.at(n).stage);
    if (auto sent = co_await out.workers[n].async_send(encode(to), as_result); !sent) co_return sent.error();
    if (sizes.copies == 0) co_return error_code();
    const auto has = co_await receive_long(out.workers[n], most_recovery_bytes);
    if (!has) co_return has.error();
    auto holding = decode_holding(*has, sizes);
    if (!holding) co_return holding.error();
    said[n] = std::move(*holding);
    co_return error_code();
  });
  if (told) co_return told;
  std::vector<std::byte> how;
  if (sizes.copies > 0) {
    all.how = recover(std::move(said));
    how = cokv::encode(*all.how);
  }
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    group.spawn(meet(b, out));
    for (std::uint32_t n = 1; n < all.kv.size(); ++n) group.spawn(find({purpose::kv, n, b.time}, all.kv[n]));
    group.spawn(each([&](std::uint32_t n) -> awaitable<error_code> {
      if (sizes.copies > 0)
        if (auto ec = co_await send_long(out.workers[n], how)) co_return ec;
      const auto heard = co_await out.workers[n].async_receive(as_result);
      if (!heard) co_return heard.error();
      co_return *heard == ready(b.time) ? error_code() : make_error_code(errc::protocol);
    }));
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

std::vector<std::uint32_t> rank_links::waiting_spares() const {
  std::vector<std::uint32_t> out;
  for (const auto& [at, one] : arrived_)
    if (at.what == purpose::spare && !one.link.error() && !book_.is_sent(at.number)) out.push_back(at.number);
  return out;
}

// Behind a loss all are missing for a moment. One whose process has ended does not answer at its door.
awaitable<void> rank_links::look_at_doors() {
  const auto look = [this](std::uint32_t n) -> awaitable<void> {
    auto link =
        co_await async_connect(windows_, doors_.at(n), named(options_.greeting, "rank/0/look/" + life_), as_result);
    if (link)
      link->close();
    else if (link.error() != asio::error::operation_aborted)  // refused, or its end came between
      nobody_at_.insert(n);
  };
  nobody_at_.clear();
  (void)co_await with_deadline(
      [](auto doors, auto one) -> awaitable<void> {
        (void)co_await with(task_group{}, [&](task_group& group) {
          for (std::uint32_t n = 1; n < doors; ++n) group.spawn(one(n));
        });
      }(static_cast<std::uint32_t>(doors_.size()), look),
      try_again);
}

// When the next one is to be sent, if there is one.
awaitable<std::optional<time_point>> rank_links::send_spares() {
  auto& time = clock::of(windows_.get_executor());
  const auto gone = missing();
  for (std::uint32_t n = 1; n < options_.split.workers(); ++n)
    if (!std::ranges::binary_search(gone, n)) book_.back(n);
  for (const auto n : gone) book_.missing(n, nobody_at_.contains(n), time.now());
  for (auto waiting = waiting_spares(); !waiting.empty(); waiting = waiting_spares()) {
    const auto n = book_.next(time.now());
    if (!n) co_return book_.next_at();
    const auto seat = waiting.front();
    auto link = arrived_.at({purpose::spare, seat}).link;
    book_.sent(*n, seat);
    spdlog::info("{}: worker {} does not come back; the spare at {} takes its place", options_.greeting.topology, *n,
                 options_.urls[seat]);
    (void)co_await link.async_send(message({{"number", *n}}), as_result);
  }
  co_return std::nullopt;
}

awaitable<result<gathered>> rank_links::gather(stage_sizes sizes, model_names names, planner recover) {
  auto& time = clock::of(windows_.get_executor());
  const auto begun = time.now();
  news changed(windows_.get_executor());
  const waits here(waiting_, changed);
  if (!waiting_spares().empty()) co_await look_at_doors();
  for (;;) {
    if (closed_) co_return errc::closed;
    if (!missing().empty()) {
      const auto next = co_await send_spares();
      const auto wait = next ? std::clamp<duration>(*next - time.now(), 1ms, tell_after) : duration(tell_after);
      const auto came = co_await with_deadline(changed.async_wait(), wait);
      if (!came && came.error() != errc::deadline) co_return errc::closed;
      if (!came && time.now() - begun >= tell_after) tell_missing();
      continue;
    }
    std::map<std::uint32_t, std::uint64_t> used;
    for (std::uint32_t n = 1; n < options_.split.workers(); ++n) used[n] = arrived_.at({purpose::plan, n}).arrival;
    gathered out;
    std::vector<std::string> doors;
    const auto met = co_await with_deadline(gather_once(sizes, names, recover, out, doors), options_.patience);
    // Used up, or of no use; what has come meanwhile is for the next time.
    for (const auto& [n, arrival] : used) {
      const auto now = arrived_.find({purpose::plan, n});
      if (now == arrived_.end() || now->second.arrival != arrival) continue;
      if (!met) now->second.link.close();
      arrived_.erase(now);
    }
    summed_ = summed_ || met.has_value();
    if (met) doors_ = doors;
    if (met)
      for (const auto& [n, arrival] : used) {
        // It is a spare no more, whoever came first.
        const auto seat = book_.seat_for(n);
        if (const auto at = seat ? arrived_.find({purpose::spare, *seat}) : arrived_.end(); at != arrived_.end())
          at->second.link.close();
        book_.there(n);
      }
    if (met) co_return out;
    if (met.error() == asio::error::operation_aborted) co_return errc::closed;
    spdlog::warn("the workers of {} did not come together: {}; once more", options_.greeting.topology,
                 met.error().message());
    co_await time.async_wait_for(gather_again, asio::deferred);
  }
}

awaitable<error_code> rank_links::summon_once(const id256& own_stage, const holder& has, summons& out) {
  if (auto ec = co_await call(0, options_.urls[0], purpose::plan, own_time(), out.links.leader)) co_return ec;
  const auto said = co_await out.links.leader.async_receive(as_result);
  if (!said) co_return said.error();
  const auto b = decode(*said);
  if (!b) co_return errc::protocol;
  if (b->stage != own_stage || (model_ && *model_ != b->fingerprint)) {
    const auto why =
        b->stage != own_stage
            ? "its checkpoint has another stage of this worker's"
            : "it has another model than the leader before, of whom this worker may have KV: start it anew";
    if (std::exchange(told_why_, why) != why) spdlog::warn("the leader at {}: {}", options_.urls.at(0), why);
    co_return errc::namespace_mismatch;
  }
  out.fingerprint = b->fingerprint;
  out.sizes = b->sizes;
  if (b->sizes.copies > 0) {
    const auto mine = cokv::encode(has ? has(b->sizes) : stage_holding());
    if (auto ec = co_await send_long(out.links.leader, mine)) co_return ec;
    const auto how = co_await receive_long(out.links.leader, most_recovery_bytes);
    if (!how) co_return how.error();
    auto told = decode_recovery(*how, b->sizes, options_.split.workers());
    if (!told) co_return told.error();
    out.how = std::move(*told);
  }
  const auto met = co_await with_deadline(meet(*b, out.links), options_.patience);
  if (!met) co_return met.error();
  if (options_.kv)
    if (auto ec = co_await call(0, options_.urls[0], purpose::kv, b->time, out.kv)) co_return ec;
  co_return (co_await out.links.leader.async_send(ready(b->time), as_result)).error();
}

awaitable<result<summons>> rank_links::summoned(id256 own_stage, holder has) {
  auto& time = clock::of(windows_.get_executor());
  for (error_code before; !closed_;) {
    summons out;
    const auto why = co_await summon_once(own_stage, has, out);
    if (!why) {
      model_ = out.fingerprint;
      told_why_ = {};
      co_return out;
    }
    if (why == asio::error::operation_aborted) co_return errc::closed;
    if (why != before) spdlog::info("the leader at {}: {}; it is tried again", options_.urls.at(0), why.message());
    before = why;
    co_await time.async_wait_for(try_again, asio::deferred);
  }
  co_return errc::closed;
}

awaitable<result<recruitment>> rank_links::recruited() {
  auto& time = clock::of(windows_.get_executor());
  for (error_code before; !closed_;) {
    recruitment out;
    auto why = co_await call(0, options_.urls[0], purpose::spare, own_time(), out.with_leader);
    if (!why) {
      const auto said = co_await out.with_leader.async_receive(as_result);
      if (said) {
        const auto v = http::parse_json(text_of(*said));
        const auto told = v ? *v : json::value();  // fields look at it
        fields f(told, "place");
        out.number = f.u32("number");
        if (!f.end() && out.number > 0 && out.number < options_.split.workers()) co_return out;
      }
      why = said ? make_error_code(errc::protocol) : said.error();
    }
    if (why == asio::error::operation_aborted) co_return errc::closed;
    if (why != before) spdlog::info("the leader at {}: {}; it is tried again", options_.urls.at(0), why.message());
    before = why;
    co_await time.async_wait_for(try_again, asio::deferred);
  }
  co_return errc::closed;
}

}  // namespace cokv::cluster

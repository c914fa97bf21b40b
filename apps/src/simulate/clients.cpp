#include "simulate/clients.hpp"

#include "cluster/wire_of.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::simulate {
namespace {

double ms(duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

constexpr auto nobody = "no replica";

// Of a worker, and not what another one would say too.
bool is_loss(error_code ec) {
  return ec && ec != errc::queue_full && ec != errc::invalid_argument && ec != errc::too_large;
}

}  // namespace

clients::clients(asio::any_io_executor ex, replicas& all, replicas& prompts, std::uint32_t routers,
                 cluster::placement_options how, asking patiently)
    : ex_(std::move(ex)),
      time_(clock::of(ex_)),
      apart_(!prompts.empty()),
      how_(how),
      patiently_(patiently),
      routers_(routers) {
  for (std::size_t n = 0; n < routers; ++n) {
    share(routers_[n], all, n);
    share(routers_[n], prompts, n);
    hear_all(routers_[n]);
  }
}

// The n-th router's part of them.
void clients::share(router& r, replicas& all, std::size_t n) {
  for (auto i = n * all.size() / routers_.size(); i < (n + 1) * all.size() / routers_.size(); ++i) {
    r.table.add(all[i]->host(0));
    r.workers.push_back(all[i].get());
  }
}

// As a heartbeat tells it, or its lack.
void clients::hear(router& r, cluster::worker_table::id id) {
  auto& w = *r.workers[id];
  const auto now = time_.now();
  if (!w.up() || w.silent()) {
    r.table.silent(id, !w.up(), now);
    return;
  }
  const auto name = w.host(0);
  r.table.heard(id,
                cluster::facts_of(w.engine(), w.role(),
                                  cluster::offer_of(w.engine(), name, name + '.' + std::to_string(w.life()))),
                now);
}

void clients::hear_in_time(router& r) {
  if (time_.now() - r.heard >= r.table.health().period) hear_all(r);
}

void clients::hear_all(router& r) {
  r.heard = time_.now();
  for (std::uint32_t id = 0; id < r.workers.size(); ++id) hear(r, id);
}

// Waits for one while none is there; better one that failed than none, but not at once.
awaitable<std::optional<clients::place>> clients::find(request& r, cluster::worker_role what, std::uint32_t prompt,
                                                       std::uint32_t length) {
  auto& by = r.by;
  for (const auto until = time_.now() + patiently_.patience;;) {
    const auto id = cluster::place(by.table, index_, {.what = what, .prompt = prompt, .length = length}, how_, r.bad);
    if (id) co_return place{&by, *id, what == cluster::worker_role::prefill ? prompt : length};
    if (time_.now() >= until) co_return std::nullopt;
    r.bad.clear();
    co_await time_.async_wait_for(patiently_.pause, asio::deferred);
    hear_in_time(by);
  }
}

void clients::lost(request& r, const place& at) {
  r.bad.insert(at.id);
  hear(*at.by, at.id);
}

void clients::begin(std::size_t requests, asked_requests& out) const {
  out.records.resize(requests);
  out.losses.resize(requests);
  if (apart_) out.journeys.resize(requests);
}

generation_request clients::order(const request& r) const {
  const auto& item = r.record.asked;
  const auto told = patiently_.from_start ? 0 : r.told();
  generation_request out{.max_tokens = item.output_tokens - told, .ignore_end_tokens = true, .continues = told};
  out.prompt.assign(item.prompt_tokens, prompt_token);
  out.prompt.insert(out.prompt.end(), told, answer_token);
  return out;
}

awaitable<void> clients::ask(const workload::load_item& item, std::size_t i, asked_requests& out) {
  auto& record = out.records[i];
  record.asked = item;
  record.sent = true;
  const auto now = time_.now();
  request r{record, out.losses[i], apart_ ? &out.journeys[i] : nullptr, routers_[next_++ % routers_.size()], now, now};
  for (std::uint32_t faults = 0;;) {
    const auto why = co_await attempt(r);
    if (!why || r.told() == item.output_tokens) break;  // all was told, if not the end
    if (record.error.empty()) record.error = why.message();
    if (record.error == nobody || !is_loss(why) || ++faults >= patiently_.attempts) break;
    record.error.clear();
    r.again = true;
  }
  if (r.told() > 0) record.prompt_tokens = item.prompt_tokens;
  record.total_ms = ms(r.last - r.begun);
  if (record.error.empty() && r.told() < item.output_tokens) record.error = "cut where the sequence was full";
}

awaitable<error_code> clients::attempt(request& r) {
  hear_in_time(r.by);
  auto what = order(r);
  const auto prompt = static_cast<std::uint32_t>(what.prompt.size());
  auto where = co_await find(r, cluster::worker_role::decode, prompt, prompt + what.max_tokens);
  if (!where) {
    r.record.error = nobody;
    co_return errc::unavailable;
  }
  error_code why = errc::closed;  // nobody listens there
  r.elsewhere = false;
  if (where->at().up()) why = co_await ask_at(*where, std::move(what), r);
  if (is_loss(why) && !r.elsewhere) lost(r, *where);
  co_return why;
}

// A replica has it, again.
void clients::taken(request& r) {
  if (!std::exchange(r.again, false)) return;
  ++r.losses.again;
  r.losses.computed += std::exchange(r.had, 0);
}

awaitable<error_code> clients::ask_at(place where, generation_request order, request& r) {
  if (r.spent) co_return co_await apart(where, std::move(order), r);
  const auto prompt = order.prompt.size();
  auto answer = where.at().engine().submit(std::move(order));
  if (!answer) co_return answer.error();
  taken(r);
  where.give();
  const auto why = co_await read(*answer, prompt, r);
  where.ended();
  co_return why;
}

// To its end. What was told already is not told again.
awaitable<error_code> clients::read(generation& answer, std::uint64_t prompt, request& r) {
  r.had = 0;
  for (auto again = patiently_.from_start ? r.told() : 0;;) {
    const auto [ec, piece] = co_await answer.async_next(asio::as_tuple(asio::deferred));
    if (ec) co_return ec == asio::error::eof ? error_code() : ec;
    r.had = r.had == 0 ? prompt : r.had + 1;  // the last token's KV is not
    if (again > 0) {
      --again;
      continue;
    }
    const auto now = time_.now();
    if (r.record.output_tokens++ == 0)
      r.record.ttft_ms = ms(now - r.begun);
    else
      r.record.gaps_ms.push_back(static_cast<float>(ms(now - r.last)));
    r.last = now;
  }
}

awaitable<error_code> clients::apart(place decode, generation_request order, request& r) {
  auto prompt = order.prompt;
  auto both = decode.at().engine().receive(std::move(order));
  if (!both) co_return both.error();
  auto& [answer, to] = *both;
  taken(r);
  decode.give();
  error_code ended;
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      const auto why = co_await bring(decode, to, prompt, r);
      to.fail(why);  // nothing, where it is complete
    });
    ended = co_await read(answer, prompt.size(), r);
    group.cancel();  // the first token was all of it: nobody waits for its KV
  });
  decode.ended();
  co_return ended;
}

// Success: all of it is there, and decodes.
awaitable<error_code> clients::bring(place decode, arrival& to, std::vector<token_id> prompt, request& r) {
  prompt_journey later;
  auto& spent = r.told() > 0 ? later : *r.spent;
  const auto asked = time_.now();
  if (auto room = co_await to.async_room(as_result); !room) co_return room.error();
  const auto begun = time_.now();
  spent.room_ms += ms(begun - asked);
  const auto tokens = static_cast<std::uint32_t>(prompt.size());
  auto where = co_await find(r, cluster::worker_role::prefill, tokens, tokens + 1);
  const auto state = co_await asio::this_coro::cancellation_state;
  const auto failed = [&](error_code why) {
    if (state.cancelled() != asio::cancellation_type::none) return why;  // where it is decoded there is an end of it
    r.elsewhere = true;
    if (where && is_loss(why)) lost(r, *where);
    return why;
  };
  if (!where) r.record.error = nobody;
  if (!where || !where->at().up()) co_return failed(errc::unavailable);
  const auto moves = std::make_shared<prompt_transfer>(ex_, where->at(), decode.at(), tokens);
  auto computes = where->at().engine().submit(
      {.prompt = std::move(prompt), .max_tokens = 1, .ignore_end_tokens = true, .sink = moves->begin()});
  if (!computes) co_return failed(computes.error());
  where->give();
  const std::shared_ptr<void> at_end(nullptr, [&](void*) { where->ended(); });
  auto first = co_await computes->async_next(as_result);
  if (!first) co_return failed(first.error());
  const auto known = time_.now();
  spent.prompt_ms += ms(known - begun);
  const auto way = where->at().outlet(0).latency(*decode.at().inlet(0));
  if (way > duration(0)) co_await time_.async_wait_for(way, asio::deferred);
  if (auto ec = to.first(answer_token)) co_return ec;
  if (auto ec = co_await moves->all_there()) co_return ec;
  spent.kv_ms += ms(std::max(moves->there() - known, duration(0)));
  if (to) to.complete();
  co_return error_code();
}

awaitable<void> clients::open(const std::vector<workload::load_item>& items, asked_requests& out) {
  begin(items.size(), out);
  const auto begun = time_.now();
  std::vector<char> ended(items.size());
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t i = 0; i < items.size(); ++i) {
      co_await time_.async_wait_until(begun + items[i].at, asio::deferred);
      if (stopped_) break;
      group.spawn([&, i]() -> awaitable<void> {
        co_await ask(items[i], i, out);
        ended[i] = !stopped_;
        if (stopped_ || !enough_ || !enough_(out.records[i])) co_return;
        stopped_ = true;
        group.cancel();
      });
    }
  });
  for (std::size_t i = 0; i < items.size() && stopped_; ++i) out.records[i].stopped = !ended[i];
  if (!v && !stopped_) throw boost::system::system_error(v.error());
}

awaitable<void> clients::closed(const std::vector<workload::load_item>& items, std::uint32_t at_once,
                                asked_requests& out) {
  begin(items.size(), out);
  const auto begun = time_.now();
  std::size_t next = 0;
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    for (std::uint32_t c = 0; c < at_once; ++c)
      group.spawn([&]() -> awaitable<void> {
        while (next < items.size()) {
          const auto i = next++;
          auto item = items[i];
          item.at = std::chrono::duration_cast<std::chrono::microseconds>(time_.now() - begun);
          co_await ask(item, i, out);
          if (!out.records[i].error.empty()) co_await time_.async_wait_for(std::chrono::seconds(1), asio::deferred);
        }
      });
  });
  if (!v) throw boost::system::system_error(v.error());
}

}  // namespace cokv::simulate

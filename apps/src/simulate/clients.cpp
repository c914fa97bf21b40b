#include "simulate/clients.hpp"

#include "cluster/wire_of.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::simulate {
namespace {

double ms(duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

}  // namespace

clients::clients(asio::any_io_executor ex, replicas& all, replicas& prompts, std::uint32_t routers,
                 cluster::placement_options how)
    : ex_(std::move(ex)), time_(clock::of(ex_)), apart_(!prompts.empty()), how_(how), routers_(routers) {
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

// As heartbeats tell it.
void clients::hear_all(router& r) {
  r.heard = time_.now();
  for (std::uint32_t id = 0; id < r.workers.size(); ++id) {
    auto& w = *r.workers[id];
    const auto name = w.host(0);
    r.table.heard(id, cluster::facts_of(w.engine(), w.role(), cluster::offer_of(w.engine(), name, name)), r.heard);
  }
}

std::optional<clients::place> clients::find(router& by, cluster::worker_role what, std::uint32_t prompt,
                                            std::uint32_t length) {
  const auto id = cluster::place(by.table, index_, {.what = what, .prompt = prompt, .length = length}, how_, {});
  if (!id) return std::nullopt;
  return place{&by, *id, what == cluster::worker_role::prefill ? prompt : length};
}

void clients::begin(std::size_t requests, asked_requests& out) const {
  out.records.resize(requests);
  if (apart_) out.journeys.resize(requests);
}

awaitable<void> clients::ask(const workload::load_item& item, workload::request_record& r, prompt_journey* spent) {
  r.asked = item;
  r.sent = true;
  auto& by = routers_[next_++ % routers_.size()];
  if (time_.now() - by.heard >= by.table.health().period) hear_all(by);
  auto where = find(by, cluster::worker_role::decode, item.prompt_tokens, item.prompt_tokens + item.output_tokens);
  if (!where) {
    r.error = "no replica";
    co_return;
  }
  const auto begun = time_.now();
  generation_request request{.max_tokens = item.output_tokens, .ignore_end_tokens = true};
  request.prompt.assign(item.prompt_tokens, prompt_token);
  if (spent) {
    co_await ask_apart(*where, std::move(request), r, *spent, begun);
  } else if (auto answer = where->at().engine().submit(std::move(request)); !answer) {
    r.error = answer.error().message();
  } else {
    where->give();
    co_await read(*answer, r, begun);
    where->ended();
  }
  if (r.error.empty() && r.output_tokens < item.output_tokens) r.error = "cut where the sequence was full";
}

// To its end.
awaitable<void> clients::read(generation& answer, workload::request_record& r, time_point begun) {
  auto last = begun;
  for (;;) {
    const auto [ec, piece] = co_await answer.async_next(asio::as_tuple(asio::deferred));
    if (ec) {
      if (ec != asio::error::eof) r.error = ec.message();
      break;
    }
    const auto now = time_.now();
    if (r.output_tokens++ == 0)
      r.ttft_ms = ms(now - begun);
    else
      r.gaps_ms.push_back(static_cast<float>(ms(now - last)));
    last = now;
  }
  r.total_ms = ms(last - begun);
  r.prompt_tokens = r.asked.prompt_tokens;
}

awaitable<void> clients::ask_apart(place decode, generation_request request, workload::request_record& r,
                                   prompt_journey& spent, time_point begun) {
  auto prompt = request.prompt;
  auto both = decode.at().engine().receive(std::move(request));
  if (!both) {
    r.error = both.error().message();
    co_return;
  }
  auto& [answer, to] = *both;
  decode.give();
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      const auto why = co_await bring(decode, to, std::move(prompt), spent);
      to.fail(why);  // nothing, where it is complete
    });
    co_await read(answer, r, begun);
    group.cancel();  // the first token was all of it: nobody waits for its KV
  });
  decode.ended();
}

// Success: all of it is there, and decodes.
awaitable<error_code> clients::bring(place decode, arrival& to, std::vector<token_id> prompt, prompt_journey& spent) {
  const auto asked = time_.now();
  if (auto room = co_await to.async_room(as_result); !room) co_return room.error();
  const auto begun = time_.now();
  spent.room_ms = ms(begun - asked);
  const auto tokens = static_cast<std::uint32_t>(prompt.size());
  auto where = find(*decode.by, cluster::worker_role::prefill, tokens, tokens + 1);
  if (!where) co_return errc::unavailable;
  const auto moves = std::make_shared<prompt_transfer>(ex_, where->at(), decode.at(), tokens);
  auto computes = where->at().engine().submit(
      {.prompt = std::move(prompt), .max_tokens = 1, .ignore_end_tokens = true, .sink = moves->begin()});
  if (!computes) co_return computes.error();
  where->give();
  const std::shared_ptr<void> at_end(nullptr, [&](void*) { where->ended(); });
  auto first = co_await computes->async_next(as_result);
  if (!first) co_return first.error();
  const auto known = time_.now();
  spent.prompt_ms = ms(known - begun);
  const auto way = where->at().outlet(0).latency(*decode.at().inlet(0));
  if (way > duration(0)) co_await time_.async_wait_for(way, asio::deferred);
  if (auto ec = to.first(answer_token)) co_return ec;
  if (auto ec = co_await moves->all_there()) co_return ec;
  spent.kv_ms = ms(std::max(moves->there() - known, duration(0)));
  if (to) to.complete();
  co_return error_code();
}

awaitable<void> clients::open(const std::vector<workload::load_item>& items, asked_requests& out) {
  begin(items.size(), out);
  const auto begun = time_.now();
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t i = 0; i < items.size(); ++i) {
      co_await time_.async_wait_until(begun + items[i].at, asio::deferred);
      group.spawn(ask(items[i], out.records[i], apart_ ? &out.journeys[i] : nullptr));
    }
  });
  if (!v) throw boost::system::system_error(v.error());
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
          co_await ask(item, out.records[i], apart_ ? &out.journeys[i] : nullptr);
          if (!out.records[i].error.empty()) co_await time_.async_wait_for(std::chrono::seconds(1), asio::deferred);
        }
      });
  });
  if (!v) throw boost::system::system_error(v.error());
}

}  // namespace cokv::simulate

#include "simulate/outages.hpp"

#include <algorithm>
#include <map>

#include "cokv/runtime/trace.hpp"
#include "cokv/runtime/with.hpp"
#include "simulate/seconds.hpp"

namespace cokv::simulate {

outages::outages(asio::any_io_executor ex, clients::replicas& answers, clients::replicas& prompts, outage_options how)
    : time_(clock::of(ex)), answers_(answers), prompts_(prompts), how_(std::move(how)) {}

awaitable<void> outages::run(time_point begun) {
  (void)co_await with(task_group{}, [&](task_group& group) {
    for (const auto& f : how_.plan.given) group.spawn(given(f, begun));
    std::uint64_t host = 0;
    for (auto* all : {&answers_, &prompts_})
      for (std::uint32_t r = 0; r < all->size() && how_.plan.mean_seconds; ++r)
        for (std::uint32_t s = 0; s < (*all)[r]->stages().size(); ++s) group.spawn(random(*(*all)[r], r, s, host++));
  });
}

awaitable<void> outages::given(given_failure f, time_point begun) {
  co_await time_.async_wait_until(begun + of_seconds(f.at), asio::deferred);
  co_await happen(*(f.prompts ? prompts_ : answers_)[f.replica], f.replica, f.stage);
}

awaitable<void> outages::random(replica& r, std::uint32_t number, std::uint32_t stage, std::uint64_t host) {
  for (random_failures mine(how_.seed, host, *how_.plan.mean_seconds);;) {
    co_await time_.async_wait_for(of_seconds(mine.next()), asio::deferred);
    co_await happen(r, number, stage);
  }
}

// Nothing, where it is lost already.
awaitable<void> outages::happen(replica& r, std::uint32_t number, std::uint32_t stage) {
  if (r.lost(stage)) co_return;
  auto& what = seen_.emplace_back(one{&r, {r.host(stage), r.role(), number, stage, time_.now(), {}, {}, {}}}).what;
  r.lose(stage);
  if (how_.detect > duration(0)) co_await time_.async_wait_for(how_.detect, asio::deferred);
  what.known = time_.now();
  co_await r.end(stage);
  co_await time_.async_wait_for(of_seconds(r.repair_seconds(stage)), asio::deferred);
  what.replaced = time_.now();
  r.begin(stage);
  auto& spans = trace::of(time_.get_executor());
  if (!spans.enabled()) co_return;
  spans.add({"failures", what.host + " is lost", what.at, *what.known, {}});
  spans.add({"failures", what.host + " is replaced", *what.known, *what.replaced, {}});
}

std::vector<outage> outages::seen() const {
  std::vector<outage> out;
  for (auto [of, what] : seen_) {
    const auto& joins = of->joins();
    const auto whole = std::ranges::lower_bound(joins, what.replaced.value_or(time_point::max()));
    if (whole != joins.end()) what.whole = *whole;
    out.push_back(std::move(what));
  }
  return out;
}

double seconds_lost(const std::vector<outage>& all, time_point end) {
  double out = 0;
  std::map<std::pair<cluster::worker_role, std::uint32_t>, time_point> whole;  // of each replica, so far
  for (auto& o : all) {
    auto& until = whole[{o.role, o.replica}];
    const auto from = std::max(o.at, until);
    until = std::max(until, std::min(end, o.whole.value_or(end)));
    if (until > from) out += std::chrono::duration<double>(until - from).count();
  }
  return out;
}

}  // namespace cokv::simulate

// All workers of a model in one process, each with its part and its links, which can be cut.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cokv/engine/engine.hpp"
#include "cokv/engine/stage_worker.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::test {

struct part_workers {
  using part_maker = std::function<std::shared_ptr<model>(model_part)>;

  using device_of = std::function<device(std::uint32_t number)>;

  // `copies`: bytes, as stage_sizes has them. Simulated devices are told apart by their number.
  part_workers(asio::any_io_executor ex, std::string device, topology t, const part_maker& make, engine_options o,
               std::uint64_t copies = 0)
      : part_workers(
            ex,
            [ex, device](std::uint32_t n) {
              return open_device(ex, device.starts_with("sim:") ? device + ":" + std::to_string(n) : device,
                                 {.threads = 1})
                  .value();
            },
            std::move(t), make, std::move(o), copies) {}
  part_workers(asio::any_io_executor ex, device_of open, topology t, const part_maker& make, engine_options o,
               std::uint64_t copies = 0)
      : ex(ex), split(std::move(t)) {
    kv_memory = o.kv_memory;
    if (copies > 0) o.copies = {windows, copies, 1};
    o.on_broken = [](error_code, std::string_view what) { FAIL_CHECK(what); };
    o.on_ranks_lost = [this](error_code why) { lost.push_back(why); };
    leader = std::make_unique<engine>(ex, open(0), make({split, {}}), std::nullopt, std::move(o));
    begin = [this, open, make](std::uint32_t n) {
      return std::make_unique<stage_worker>(this->ex, open(n), make({split, split.at(n)}), leader->sizes(), kv_memory,
                                            windows);
    };
    for (std::uint32_t n = 1; n < split.workers(); ++n) others.push_back(begin(n));
  }

  // Two ends of a link.
  awaitable<std::pair<peer_link, peer_link>> linked() {
    auto door = link_listener::listen(windows, "tcp://localhost:0").value();
    std::pair<peer_link, peer_link> ends;
    const auto v = co_await with(task_group{}, [&](task_group& group) {
      group.spawn([&]() -> awaitable<void> { ends.second = co_await door.async_accept(); });
      group.spawn([&]() -> awaitable<void> { ends.first = co_await async_connect(windows, door.url()); });
    });
    if (!v) throw boost::system::system_error(v.error());
    co_return ends;
  }

  awaitable<void> link_all() {
    links.assign(split.workers(), {});
    all_links.clear();
    links[0].workers.resize(split.workers());
    for (std::uint32_t n = 0; n < split.workers(); ++n) {
      const auto who = split.at(n);
      const auto link = [&](peer_link& here, peer_link& there) -> awaitable<void> {
        std::tie(here, there) = co_await linked();
        all_links.push_back(here);
      };
      if (n > 0) co_await link(links[0].workers[n], links[n].leader);
      if (n > 0 && leader->sizes().copies > 0) co_await link(links[n].keeper, links[keeper_of(split, n)].kept);
      if (who.stage + 1 < split.depth()) co_await link(links[n].behind, links[n + split.degree()].before);
      if (split.degree() == 1) continue;
      links[n].ranks.resize(split.degree());
      for (std::uint32_t r = 0; r < who.rank; ++r) {
        auto& other = links[split.number({who.stage, r})];
        co_await link(links[n].ranks[r], other.ranks[who.rank]);
      }
    }
  }

  // Until stop(), or a link is cut.
  awaitable<void> join_all(task_group& group) {
    stop();
    // Each has seen it: the leader too may be the last.
    while (*running > 0 || leader->counters().joined)
      co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1), asio::deferred);
    co_await link_all();
    std::optional<stage_recovery> how;
    if (leader->sizes().copies > 0) {
      std::vector<stage_holding> said(1);
      for (auto& w : others) said.push_back(w->holding());
      how = leader->recover(std::move(said));
    }
    for (std::uint32_t n = 1; n < split.workers(); ++n)
      group.spawn([this, n, how, mine = std::move(links[n])]() mutable -> awaitable<void> {
        ++*running;
        const std::shared_ptr<void> at_end(nullptr, [r = running](void*) { --*r; });
        ended.push_back(co_await others[n - 1]->run(std::move(mine), how));
      });
    auto mine = std::move(links[0]);
    links.clear();
    error_code ec;
    while ((ec = leader->join(mine, how)) == errc::in_use)
      co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1), asio::deferred);
    REQUIRE(!ec);
  }
  // Another worker in its place, which has nothing. Not while it runs.
  void replace(std::uint32_t n) { others[n - 1] = begin(n); }
  void cut(std::size_t i) { all_links[i % all_links.size()].close(); }
  void stop() {
    for (auto& l : all_links) l.close();
    all_links.clear();
  }

  // However its caller was cancelled: nothing of it is left.
  awaitable<void> ends_clean() {
    co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
    stop();
    leader->cancel_all();
    co_await leader->async_drain(asio::as_tuple(asio::deferred));
    co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1), asio::deferred);
    CHECK(leader->counters().blocks_in_use == 0);
  }

  asio::any_io_executor ex;
  topology split;
  window_table windows{ex};
  memory_kind kv_memory = memory_kind::device;
  std::function<std::unique_ptr<stage_worker>(std::uint32_t)> begin;
  std::unique_ptr<engine> leader;
  std::vector<std::unique_ptr<stage_worker>> others;
  std::vector<stage_links> links;
  std::vector<peer_link> all_links;  // one end of each
  std::vector<error_code> lost, ended;
  std::shared_ptr<int> running = std::make_shared<int>(0);  // of coroutines that may outlive it
};

}  // namespace cokv::test

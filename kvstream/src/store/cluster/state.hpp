// What the parts of cluster_store share: the nodes with their health and counters, and how one of them is asked.
#pragma once

#include <optional>

#include "cokv/kvstream/cluster_store.hpp"
#include "cokv/kvstream/rendezvous.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "store/cluster/shares.hpp"
#include "tier/tier_health.hpp"

namespace cokv::detail {

// A node, for as long as anything uses it.
struct cluster_member {
  std::shared_ptr<store> blocks;
  std::shared_ptr<tier_health> health;
  cluster_node_info count;
};

// The nodes at one time. Never changes: who began with it ends with it.
struct cluster_view {
  rendezvous where;
  std::vector<std::shared_ptr<cluster_member>> members;

  bool all_bad() const {
    return std::ranges::all_of(members, [](const auto& m) { return m->health->bad(); });
  }
};

// A refusal of this request, or one's own business: says nothing against the node.
inline bool node_is_well(error_code ec) {
  return !ec || ec == errc::store_full || ec == errc::too_large || ec == errc::invalid_argument ||
         ec == errc::namespace_mismatch || ec == errc::not_found || ec == errc::unsupported || ec == errc::queue_full ||
         ec == errc::partial || ec == errc::out_of_range || ec == errc::wrong_device;
}

inline bool no_room(error_code ec) { return ec == errc::store_full || ec == errc::too_large; }

struct cluster_state {
  cluster_state(asio::any_io_executor e, cluster_store_options o) : ex(std::move(e)), options(std::move(o)) {}

  time_point now() const { return clock::of(ex).now(); }

  // Whether the node may be asked; the try is given up with what is returned unless settle() is told how it went.
  tier_try try_node(cluster_member& m) const {
    auto attempt = tier_try::begin(m.health, now());
    if (!attempt) ++m.count.passed_by;
    return attempt;
  }

  void settle(cluster_member& m, error_code ec) const {
    if (ec == asio::error::operation_aborted) return;  // nothing was learned
    if (ec) ++m.count.errors;
    if (!node_is_well(ec) && m.health->failed(now()) && options.on_node_bad) options.on_node_bad(m.count.name, ec);
  }
  // Only what was begun to find that out tells that a bad node is back: what a dead one's socket still takes does not.
  void settle(cluster_member& m, tier_try& attempt, error_code ec) const {
    if (ec == asio::error::operation_aborted) return attempt.end();
    const bool probing = attempt.probing();
    attempt.told();
    settle(m, ec);
    if (probing && node_is_well(ec) && m.health->succeeded() && options.on_node_good)
      options.on_node_good(m.count.name);
  }

  // What an operation comes to that got nowhere on any node that it concerned.
  error_code failure(const cluster_view& view, error_code last) const {
    if (view.all_bad() || (last && node_is_well(last))) return last ? last : errc::unavailable;
    return errc::partial;
  }

  asio::any_io_executor ex;
  cluster_store_options options;
  std::shared_ptr<const cluster_view> view;
  store_info gone;  // of nodes that were taken out
};

// Takes up a try of each share's node, and ends the prefix before the first block of one that may not be asked: what lies
// behind it is nobody's business.
inline std::vector<tier_try> try_all(const cluster_state& s, const cluster_view& view,
                                     const std::vector<cluster_share>& shares, std::size_t& end) {
  std::vector<tier_try> out;
  for (const auto& share : shares) {
    out.push_back(s.try_node(*view.members[share.node]));
    if (!out.back()) end = share.end_of(0, end);
  }
  return out;
}

// Runs ask(0) ... ask(n - 1), awaitables of void that own what they need, at the same time; over when all are. Errors: a
// cancellation's.
template <class F>
awaitable<error_code> at_once(std::size_t n, F ask) {
  if (n == 0) co_return error_code();
  error_code ec;
  if (n == 1) {
    co_await ask(std::size_t{0});
  } else {
    auto v = co_await with(task_group{}, [&](task_group& group) {
      for (std::size_t i = 0; i < n; ++i) group.spawn(ask(i));
    });
    ec = v.error();
  }
  // Each has taken the end of its wait for an answer.
  const auto state = co_await asio::this_coro::cancellation_state;
  co_return state.cancelled() != asio::cancellation_type::none ? asio::error::operation_aborted : ec;
}

awaitable<result<std::unique_ptr<block_writer>>> open_cluster_writer(std::shared_ptr<cluster_state> s, namespace_id ns,
                                                                     block_layout layout, std::vector<block_key> keys,
                                                                     write_options options);
awaitable<result<std::unique_ptr<block_reader>>> open_cluster_reader(std::shared_ptr<cluster_state> s, namespace_id ns,
                                                                     block_layout layout, std::vector<block_key> keys);

}  // namespace cokv::detail

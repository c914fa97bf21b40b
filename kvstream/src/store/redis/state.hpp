// What the parts of redis_store share: the cluster, the counters, and what is done to one block.
#pragma once

#include "cokv/kvstream/redis_store.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/detail/seed_source.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "store/redis/cluster.hpp"
#include "store/redis/head.hpp"
#include "store/redis/slots.hpp"

namespace cokv::detail {

struct redis_state {
  std::shared_ptr<redis_cluster> cluster;
  redis_store_options options;
  store_info counters;
  std::uint64_t last_nonce = 0;

  time_point now() const { return clock::of(cluster->get_executor()).now(); }

  // Not drawn twice by any two writers, of one process or several.
  std::uint64_t next_nonce() {
    if (last_nonce == 0) last_nonce = seed_source::of(cluster->get_executor()).next();
    return last_nonce += 0x9e3779b97f4a7c15u;
  }

  // What an operation comes to that got nowhere: with a node that is well, a bad one's share is merely missing.
  error_code failure(error_code last) const {
    if (last == redis_errc::out_of_memory) return errc::store_full;
    return cluster->others_well() && node_is_away(last) ? make_error_code(errc::partial) : last;
  }
  // Whether a prefix without a block is to be told of as this: what one of several nodes has is merely missing.
  bool is_failure(error_code last) const { return last && !(cluster->others_well() && node_is_away(last)); }
  static bool node_is_away(error_code ec) {
    return ec && (ec.category() != redis_category() || ec == redis_errc::loading || ec == redis_errc::cluster_down ||
                  ec == redis_errc::master_down || ec == redis_errc::try_again || ec == redis_errc::read_only);
  }
};

// Calls ask(i) for each i below n, `width` of them at a time, until one returns false; every ask has ended when it
// returns. Errors: a cancellation's. `ask` gives an awaitable that owns what it needs.
template <class Ask>
awaitable<error_code> spread(std::size_t n, std::size_t width, Ask ask) {
  struct turns {
    Ask ask;
    std::size_t next = 0, end;
  };
  static constexpr auto work = [](std::shared_ptr<turns> t) -> awaitable<void> {
    while (t->next < t->end)
      if (!co_await t->ask(t->next++)) t->end = 0;
  };
  auto t = std::make_shared<turns>(turns{std::move(ask), 0, n});
  error_code ec;
  if (n <= 1 || width <= 1) {
    co_await work(t);
  } else {
    auto v = co_await with(task_group{}, [&](task_group& group) {
      for (std::size_t i = 0; i < std::min(n, width); ++i) group.spawn(work(t));
    });
    ec = v.error();
  }
  // Each has taken the end of its wait for an answer.
  const auto state = co_await asio::this_coro::cancellation_state;
  co_return state.cancelled() != asio::cancellation_type::none ? asio::error::operation_aborted : ec;
}

// A block's head, if there is one; errc::digest_mismatch when what is there is none.
awaitable<result<std::optional<redis_head>>> read_head(std::shared_ptr<redis_state> s, namespace_id ns, block_key key);
enum class told { no, yes };  // result<bool> takes no error_code

constexpr int commit_tries = 64;
// Makes the block visible, if all its pieces are there: yes; no when another one of that key is, or, with
// force, in its place. errc::not_found: a piece is missing. errc::in_use: each time that it was to take the place of what is
// there, that was another one by then.
awaitable<result<told>> commit_block(std::shared_ptr<redis_state> s, redis_head head, bool force);
// Removes the block if it is still this one.
awaitable<result<told>> drop_block(std::shared_ptr<redis_state> s, redis_head head);
// Removes pieces that no head names.
awaitable<void> drop_pieces(std::shared_ptr<redis_state> s, redis_head head);
// The block counts as used, and lives on for another ttl.
awaitable<result<told>> refresh_block(std::shared_ptr<redis_state> s, redis_head head);

awaitable<result<std::unique_ptr<block_writer>>> open_redis_writer(std::shared_ptr<redis_state> s, namespace_id ns,
                                                                   block_layout layout, std::vector<block_key> keys,
                                                                   write_options options);
awaitable<result<std::unique_ptr<block_reader>>> open_redis_reader(std::shared_ptr<redis_state> s, namespace_id ns,
                                                                   block_layout layout, std::vector<block_key> keys);

}  // namespace cokv::detail

#include "cokv/kvstream/cluster_store.hpp"

#include <set>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/cluster/state.hpp"
#include "store/stored_id.hpp"

namespace cokv {

using detail::cluster_member;
using detail::cluster_share;
using detail::cluster_state;
using detail::cluster_view;

namespace {

auto total() { return asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation()); }
auto partial() { return asio::this_coro::reset_cancellation_state(asio::enable_partial_cancellation()); }

void add(store_info& to, const store_info& from) {
  for (const auto field :
       {&store_info::limit_bytes, &store_info::used_bytes, &store_info::blocks, &store_info::written_blocks,
        &store_info::written_bytes, &store_info::read_segments, &store_info::read_bytes, &store_info::hits,
        &store_info::misses, &store_info::evicted_blocks, &store_info::digest_failures, &store_info::refused,
        &store_info::failed_writes, &store_info::no_room_blocks})
    to.*field += from.*field;
}

std::shared_ptr<const cluster_view> make_view(const cluster_state& s, std::vector<cluster_node> nodes) {
  if (nodes.empty()) throw config_error("a cluster of stores needs a node");
  if (nodes.size() > cluster_store::max_nodes)
    throw config_error("a cluster of stores has at most " + std::to_string(cluster_store::max_nodes) + " nodes");
  auto view = std::make_shared<cluster_view>();
  std::vector<std::string> names;
  std::set<std::string_view> seen;
  for (auto& node : nodes) {
    if (node.name.empty()) throw config_error("a node of a cluster of stores has no name");
    if (!seen.insert(node.name).second) throw config_error("a cluster of stores names " + node.name + " twice");
    std::shared_ptr<cluster_member> member;
    if (s.view)
      for (const auto& old : s.view->members)
        if (old->count.name == node.name && (!node.blocks || node.blocks == old->blocks)) member = old;
    if (!member) {
      if (!node.blocks) throw config_error("the node " + node.name + " of a cluster of stores has no store");
      member = std::make_shared<cluster_member>();
      member->blocks = std::move(node.blocks);
      member->health = std::make_shared<tier_health>(s.options.first_backoff, s.options.most_backoff);
      member->count.name = node.name;
    }
    names.push_back(node.name);
    view->members.push_back(std::move(member));
  }
  view->where = rendezvous(names);
  return view;
}

// One match over several nodes.
struct match_job {
  std::shared_ptr<cluster_state> state;
  std::shared_ptr<const cluster_view> view;
  namespace_id ns;
  std::vector<block_key> keys;
  match_options options;
  std::vector<cluster_share> shares = {};
  std::vector<tier_try> tries = {};
  std::size_t end = 0;
  error_code last = {};
};

awaitable<void> match_share(std::shared_ptr<match_job> job, std::size_t i) {
  const auto& share = job->shares[i];
  auto& member = *job->view->members[share.node];
  const auto asked = share.before(job->end);
  if (!job->tries[i] || asked == 0) co_return job->tries[i].end();
  auto n = co_await with_deadline(member.blocks->async_match(job->ns, share.pick(job->keys, asked), job->options),
                                  job->state->options.lookup_budget);
  job->state->settle(member, job->tries[i], n ? error_code() : n.error());
  if (!n) job->last = n.error();
  const auto found = n ? std::min(*n, asked) : 0;
  member.count.hit_blocks += found;
  if (n) member.count.missed_blocks += asked - found;
  job->end = share.end_of(found, job->end);
}

awaitable<result<std::size_t>> match(std::shared_ptr<cluster_state> s, namespace_id ns, std::vector<block_key> keys,
                                     match_options options) {
  co_await total();
  if (keys.size() > detail::max_request_blocks) co_return errc::too_large;
  auto job = std::make_shared<match_job>(s, s->view, ns, std::move(keys), options);
  job->shares = detail::shares_of(job->view->where, job->keys);
  job->end = job->keys.size();
  job->tries = detail::try_all(*s, *job->view, job->shares, job->end);
  if (auto ec = co_await detail::at_once(job->shares.size(), [&job](std::size_t i) { return match_share(job, i); }))
    co_return ec;
  if (job->end == 0 && !job->keys.empty() && job->view->all_bad()) co_return s->failure(*job->view, job->last);
  co_return job->end;
}

// An operation on the one node that has the key.
template <class T, class Ask>
awaitable<result<T>> on_node_of(std::shared_ptr<cluster_state> s, block_key key, Ask ask) {
  const auto member = s->view->members[s->view->where.node_of(key)];
  auto attempt = s->try_node(*member);
  if (!attempt) co_return errc::unavailable;
  result<T> r = co_await with_deadline(ask(*member->blocks), s->options.write_budget);
  s->settle(*member, attempt, r ? error_code() : r.error());
  co_return r;
}

awaitable<void> settle_node(std::shared_ptr<cluster_member> m) { (void)co_await m->blocks->async_settle(as_result); }

}  // namespace

cluster_store::cluster_store(asio::any_io_executor ex, std::vector<cluster_node> nodes, cluster_store_options options)
    : store(ex), state_(std::make_shared<cluster_state>(ex, std::move(options))) {
  set_nodes(std::move(nodes));
}

cluster_store::~cluster_store() = default;

void cluster_store::set_nodes(std::vector<cluster_node> nodes) {
  auto view = make_view(*state_, std::move(nodes));
  if (state_->view)
    for (const auto& old : state_->view->members)
      if (std::ranges::find(view->members, old) == view->members.end()) {
        auto last = old->blocks->info();
        last.limit_bytes = last.used_bytes = last.blocks = 0;
        add(state_->gone, last);
      }
  state_->view = std::move(view);
}

std::vector<cluster_node_info> cluster_store::nodes() const {
  std::vector<cluster_node_info> out;
  for (const auto& m : state_->view->members) {
    auto& info = out.emplace_back(m->count);
    info.bad = m->health->bad();
    info.stored = m->blocks->info();
  }
  return out;
}

store_info cluster_store::info() const {
  auto out = state_->gone;
  for (const auto& m : state_->view->members) add(out, m->blocks->info());
  out.kind = "cluster";
  return out;
}

void cluster_store::do_match(namespace_id ns, std::vector<block_key> keys, match_options options,
                             count_handler handler) {
  detail::run_as_operation(get_executor(), match(state_, ns, std::move(keys), options), std::move(handler));
}

void cluster_store::do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                  write_options options, writer_handler handler) {
  detail::run_as_operation(
      get_executor(), detail::open_cluster_writer(state_, ns, std::move(layout), std::move(keys), std::move(options)),
      std::move(handler));
}

void cluster_store::do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                 reader_handler handler) {
  detail::run_as_operation(get_executor(), detail::open_cluster_reader(state_, ns, std::move(layout), std::move(keys)),
                           std::move(handler));
}

void cluster_store::do_remove(namespace_id ns, block_key key, done_handler handler) {
  static constexpr auto remove = [](std::shared_ptr<cluster_state> s, namespace_id ns,
                                    block_key key) -> awaitable<error_code> {
    co_await partial();
    auto gone = co_await on_node_of<void>(s, key, [&](store& at) { return at.async_remove(ns, key); });
    co_return gone ? error_code() : gone.error();
  };
  detail::run_as_operation(get_executor(), remove(state_, ns, key), std::move(handler));
}

void cluster_store::do_layout(namespace_id ns, block_key key, layout_handler handler) {
  static constexpr auto layout = [](std::shared_ptr<cluster_state> s, namespace_id ns,
                                    block_key key) -> awaitable<result<block_layout>> {
    co_await total();
    co_return co_await on_node_of<block_layout>(s, key, [&](store& at) { return at.async_layout(ns, key); });
  };
  detail::run_as_operation(get_executor(), layout(state_, ns, key), std::move(handler));
}

void cluster_store::do_settle(done_handler handler) {
  static constexpr auto settle = [](std::shared_ptr<cluster_state> s) -> awaitable<error_code> {
    co_await total();
    const auto view = s->view;
    co_return co_await detail::at_once(view->members.size(),
                                       [&view](std::size_t i) { return settle_node(view->members[i]); });
  };
  detail::run_as_operation(get_executor(), settle(state_), std::move(handler));
}

}  // namespace cokv

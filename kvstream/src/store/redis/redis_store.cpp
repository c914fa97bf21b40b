#include "cokv/kvstream/redis_store.hpp"

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/redis/state.hpp"
#include "store/stored_id.hpp"

namespace cokv {

using detail::redis_head;
using detail::redis_state;

namespace {

auto total() { return asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation()); }

struct match_job {
  std::shared_ptr<redis_state> state;
  namespace_id ns;
  std::vector<block_key> keys;
  match_options options;
  std::vector<bool> there = std::vector<bool>(keys.size());
  std::size_t end = keys.size();
  error_code last = {};
};

awaitable<bool> match_one(std::shared_ptr<match_job> job, std::size_t i) {
  if (i >= job->end) co_return false;
  result<detail::told> there = detail::told::no;
  if (job->options.refresh) {
    auto head = co_await detail::read_head(job->state, job->ns, job->keys[i]);
    if (!head)
      there = head.error();
    else if (*head)
      there = co_await detail::refresh_block(job->state, std::move(**head));
  } else {
    const auto name = detail::head_name(job->ns, job->keys[i]);
    auto reply = co_await job->state->cluster->execute(detail::slot_of(name), {"EXISTS", name}, 0,
                                                       detail::one_of(detail::redis_value::kind::integer));
    if (reply)
      there = reply->integer == 1 ? detail::told::yes : detail::told::no;
    else
      there = reply.error();
  }
  if (!there && there.error() != errc::digest_mismatch) job->last = there.error();
  job->there[i] = there && *there == detail::told::yes;
  if (!job->there[i]) job->end = std::min(job->end, i);
  co_return true;
}

awaitable<result<std::size_t>> match(std::shared_ptr<redis_state> s, namespace_id ns, std::vector<block_key> keys,
                                     match_options options) {
  co_await total();
  if (keys.empty()) co_return std::size_t(0);
  if (keys.size() > s->options.max_blocks) co_return errc::too_large;
  auto job = std::make_shared<match_job>(s, ns, std::move(keys), options);
  const auto begun = s->now();
  auto all = with_deadline(
      detail::spread(job->keys.size(), s->options.in_flight, [job](std::size_t i) { return match_one(job, i); }),
      s->options.lookup);
  if (auto done = co_await std::move(all); !done) {
    if (done.error() != errc::deadline) co_return done.error();
    job->last = errc::deadline;
    s->cluster->give_up_silent(begun);
    job->end = std::min<std::size_t>(
        job->end, static_cast<std::size_t>(std::ranges::find(job->there, false) - job->there.begin()));
  }
  if (job->end == 0 && s->is_failure(job->last)) co_return s->failure(job->last);
  s->counters.hits += job->end;
  s->counters.misses += job->keys.size() - job->end;
  co_return job->end;
}

awaitable<error_code> remove(std::shared_ptr<redis_state> s, namespace_id ns, block_key key) {
  co_await asio::this_coro::reset_cancellation_state(asio::enable_partial_cancellation());
  for (int tries = 0; tries < 8; ++tries) {  // another one may take its place under us
    auto head = co_await detail::read_head(s, ns, key);
    if (head.error() == errc::digest_mismatch) {
      const auto name = detail::head_name(ns, key);
      auto gone = co_await s->cluster->execute(detail::slot_of(name), {"UNLINK", name}, 0,
                                               detail::one_of(detail::redis_value::kind::integer));
      co_return gone ? make_error_code(errc::not_found) : gone.error();
    }
    if (!head) co_return head.error();
    if (!*head) co_return errc::not_found;
    auto gone = co_await detail::drop_block(s, std::move(**head));
    if (!gone) co_return gone.error();
    if (*gone == detail::told::yes) co_return error_code();
  }
  co_return errc::in_use;
}

awaitable<result<block_layout>> layout_of(std::shared_ptr<redis_state> s, namespace_id ns, block_key key) {
  co_await total();
  auto head = co_await detail::read_head(std::move(s), ns, key);
  if (!head) co_return head.error();
  if (!*head) co_return errc::not_found;
  co_return std::move((*head)->layout);
}

}  // namespace

redis_store::redis_store(asio::any_io_executor ex, std::string_view url, redis_store_options options)
    : store(ex), state_(std::make_shared<redis_state>()) {
  auto at = detail::parse_redis_url(url);
  if (!at)
    throw config_error("redis store: " +
                       std::string(at.error() == errc::unsupported
                                       ? "only redis:// and database 0 are supported"
                                       : "not redis://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]"));
  if (options.piece_bytes == 0 || options.piece_bytes > detail::max_redis_piece)
    throw config_error("redis store: piece_bytes is from 1 byte to 64 MiB");
  if (options.ttl.count() < 0 || options.unfinished.count() <= 0)
    throw config_error("redis store: a time to live is not negative");
  detail::redis_cluster_options how;
  how.pipe.user = at->user;
  how.pipe.password = at->password;
  how.pipe.max_string = detail::max_redis_piece;
  how.pipe.max_pipelined = options.max_pipelined;
  how.pipe.connect = options.connect;
  how.pipe.silence = options.silence;
  how.back_off_min = options.back_off_min;
  how.back_off_max = options.back_off_max;
  state_->cluster = std::make_shared<detail::redis_cluster>(ex, std::move(*at), std::move(how));
  state_->options = options;
  state_->counters.kind = "redis";
}

redis_store::~redis_store() { state_->cluster->close(); }

store_info redis_store::info() const { return state_->counters; }

void redis_store::do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) {
  detail::run_as_operation(get_executor(), match(state_, ns, std::move(keys), options), std::move(handler));
}

void redis_store::do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                write_options options, writer_handler handler) {
  detail::run_as_operation(
      get_executor(), detail::open_redis_writer(state_, ns, std::move(layout), std::move(keys), std::move(options)),
      std::move(handler));
}

void redis_store::do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                               reader_handler handler) {
  detail::run_as_operation(get_executor(), detail::open_redis_reader(state_, ns, std::move(layout), std::move(keys)),
                           std::move(handler));
}

void redis_store::do_remove(namespace_id ns, block_key key, done_handler handler) {
  detail::run_as_operation(get_executor(), remove(state_, ns, key), std::move(handler));
}

void redis_store::do_layout(namespace_id ns, block_key key, layout_handler handler) {
  detail::run_as_operation(get_executor(), layout_of(state_, ns, key), std::move(handler));
}

}  // namespace cokv

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/file_write_job.hpp"

namespace cokv::detail {
namespace {

awaitable<error_code> run_write(std::shared_ptr<write_job> job, std::uint32_t layer, std::vector<buffer> segments) {
  write_job::turn turn(job);
  co_return co_await job->write(layer, std::move(segments));
}

awaitable<void> run_deferred(std::shared_ptr<write_job> job, std::unique_ptr<write_job::turn>, permit) {
  // Nobody waits for what comes of it: failures are counted, and their room given back.
  if (auto ec = co_await job->commit()) co_return;
}

awaitable<error_code> run_commit(std::shared_ptr<write_job> job, bool deferred) {
  co_await asio::this_coro::throw_if_cancelled(false);
  auto turn = std::make_unique<write_job::turn>(job);
  if (job->over || job->entered) co_return errc::closed;
  if (job->failed) co_return job->failed;
  if (std::find(job->written.begin(), job->written.end(), false) != job->written.end())
    co_return errc::invalid_argument;
  if (!deferred) co_return co_await job->commit();
  auto [ec, under_way] = co_await job->store->deferred.async_acquire(1, as_tuple());
  if (ec) co_return ec;
  const auto outcome = job->all_or_full();
  job->failed = errc::closed;  // for whoever asks again
  asio::co_spawn(job->store->ex, run_deferred(job, std::move(turn), std::move(under_way)), asio::detached);
  co_return outcome;
}

class file_writer final : public block_writer {
 public:
  file_writer(std::shared_ptr<write_job> job, bool deferred)
      : block_writer(job->store->ex), job_(std::move(job)), deferred_(deferred) {}
  ~file_writer() override { job_->abandon(); }

  std::size_t kept() const override { return job_->kept; }

 private:
  void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
    run_as_operation(get_executor(), run_write(job_, layer, std::move(segments)), std::move(handler));
  }
  void do_commit(done_handler handler) override {
    run_as_operation(get_executor(), run_commit(job_, deferred_), std::move(handler));
  }

  std::shared_ptr<write_job> job_;
  bool deferred_;
};

// As many of the first blocks as find room; what is left out is counted, and the disk taken to be full.
awaitable<std::tuple<error_code, std::size_t>> find_room(write_job& job, std::size_t fresh) {
  auto& s = *job.store;
  const auto& layout = *job.layout;
  auto fit = fresh;
  const auto most_below = [&](std::uint64_t bytes) {
    while (fit > 0 && s.bytes_for(layout, fit, job.tenant) > bytes) fit -= std::max<std::size_t>(fit / 16, 1);
  };
  if (s.disk_was_full()) {
    const auto all = s.budget() + s.book.evictable();
    most_below(all - std::min(all, s.used()));
  } else {
    // What would be cleaned for the limit's sake gives its room to the disk first.
    const auto need = s.bytes_for(layout, fresh, job.tenant), used = s.used();
    const auto cleaned = used + need - std::min(used + need, s.budget());
    if (need + *s.reserved > s.disk_room() + cleaned) {
      s.disk_is_full();  // what is there stays, this time
      most_below(s.budget() - std::min(s.budget(), used));
    }
  }
  if (fit < fresh) {
    s.counters.failed_writes += fresh - fit;
    s.counters.no_room_blocks += fresh - fit;
    if (fit == 0) co_return std::tuple(error_code(errc::store_full), fit);
  }
  auto [ec, room] = co_await s.make_room(s.bytes_for(layout, fit, job.tenant));
  job.room = std::move(room);
  co_return std::tuple(ec, fit);
}

awaitable<error_code> take_extents(write_job& job, std::span<const std::size_t> keys) {
  auto& s = *job.store;
  const auto a_part = s.blocks_a_part(*job.layout, job.tenant);
  job.parts.reserve((keys.size() + a_part - 1) / a_part);
  for (std::size_t first = 0; first < keys.size(); first += a_part) {
    write_job::part p;
    p.keys.assign(keys.begin() + static_cast<std::ptrdiff_t>(first),
                  keys.begin() + static_cast<std::ptrdiff_t>(std::min(first + a_part, keys.size())));
    p.whole = p.keys.size();
    p.extent.layout = job.layout;
    p.extent.alignment = s.alignment();
    p.extent.places = static_cast<std::uint32_t>(p.whole);
    p.digests.resize(p.whole * job.layout->layers());
    std::size_t returned = 0;
    for (auto k : p.keys) returned += s.book.returns(job.id_of(k));
    auto [ec, in] = co_await s.open_extent(2 * returned > p.whole, p.extent.bytes(), job.room);
    if (ec) co_return ec;
    p.extent.at = in.at;
    p.in = std::move(in);
    p.unwritten = p.extent.bytes();
    *s.unwritten += p.unwritten;
    *s.writing += p.extent.bytes();
    job.parts.push_back(std::move(p));
  }
  co_return error_code();
}

}  // namespace

awaitable<std::tuple<error_code, std::unique_ptr<block_writer>>> open_file_writer(std::shared_ptr<file_store::state> s,
                                                                                  namespace_id ns, block_layout layout,
                                                                                  std::vector<block_key> keys,
                                                                                  write_options options) {
  co_await asio::this_coro::throw_if_cancelled(false);
  auto fail = [](error_code ec) { return std::tuple(ec, std::unique_ptr<block_writer>()); };
  if (auto ec = check_request(layout, keys)) co_return fail(ec);
  if (auto ec = check_distinct(keys)) co_return fail(ec);
  if (options.tenant.size() > log_tenant_most) co_return fail(errc::invalid_argument);
  auto job = std::make_shared<write_job>(s, ns, std::move(keys));
  job->force = options.force;
  job->tenant = std::move(options.tenant);
  job->digest = s->options.digest;
  job->layout = s->share(ns, std::make_shared<const block_layout>(std::move(layout)));
  job->written.resize(job->layout->layers());
  std::vector<std::size_t> fresh;
  for (std::size_t i = 0; i < job->keys.size(); ++i) {
    const auto* there = options.force ? nullptr : s->book.find(job->id_of(i));
    if (there && *there->group->extent.layout != *job->layout) co_return fail(errc::namespace_mismatch);
    if (there)
      job->present.add(job->id_of(i), there->group->serial);
    else
      fresh.push_back(i);
  }
  if (!fresh.empty()) {
    if (s->bytes_for(*job->layout, fresh.size(), job->tenant) > s->options.limit_bytes - s->options.limit_bytes / 16)
      co_return fail(errc::too_large);
    const auto bytes = [&](std::size_t n) { return n * log_block_bytes(*job->layout, s->alignment()); };
    auto& quotas = s->book.quotas();
    if (!quotas.could_take(job->tenant, bytes(fresh.size()))) co_return fail(errc::too_large);
    if (!quotas.can_take(job->tenant, bytes(fresh.size()))) co_return fail(errc::store_full);
    auto [ec, fit] = co_await find_room(*job, fresh.size());
    if (ec) co_return fail(ec);
    // Only now: nothing is given up for what finds no room.
    auto taken_quota = s->take_quota(job->tenant, bytes(fit));
    if (!taken_quota) co_return fail(taken_quota.error());
    job->quota = std::move(*taken_quota);
    if (fit < fresh.size()) {
      job->kept = fresh[fit];
      fresh.resize(fit);
    }
    auto taken = as_store_error(co_await take_extents(*job, fresh));
    if (taken) {
      job->abandon();
      co_return fail(taken);
    }
  }
  std::unique_ptr<block_writer> writer = std::make_unique<file_writer>(std::move(job), options.deferred);
  co_return std::tuple(error_code(), std::move(writer));
}

}  // namespace cokv::detail

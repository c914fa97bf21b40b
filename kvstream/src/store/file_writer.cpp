#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/file_write_job.hpp"

namespace cokv::detail {
namespace {

awaitable<error_code> run_write(std::shared_ptr<write_job> job, std::uint32_t layer, std::vector<buffer> segments) {
  write_job::turn turn(job);
  co_return co_await job->write(layer, std::move(segments));
}

awaitable<void> run_deferred(std::shared_ptr<write_job> job, std::unique_ptr<write_job::turn>, permit) {
  // Nobody waits for what comes of it: failures are counted, and their files removed.
  if (auto ec = co_await job->commit()) co_return;
}

awaitable<error_code> run_commit(std::shared_ptr<write_job> job, bool deferred) {
  auto turn = std::make_unique<write_job::turn>(job);
  if (job->over) co_return errc::closed;
  if (job->failed) co_return job->failed;
  if (std::find(job->written.begin(), job->written.end(), false) != job->written.end())
    co_return errc::invalid_argument;
  if (!deferred) co_return co_await job->commit();
  auto [ec, under_way] = co_await job->store->deferred.async_acquire(1, as_tuple());
  if (ec) co_return ec;
  job->failed = errc::closed;  // for whoever asks again
  asio::co_spawn(job->store->ex, run_deferred(job, std::move(turn), std::move(under_way)), asio::detached);
  co_return job->all_or_full();
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

}  // namespace

awaitable<std::tuple<error_code, std::unique_ptr<block_writer>>> open_file_writer(std::shared_ptr<file_store::state> s,
                                                                                  namespace_id ns, block_layout layout,
                                                                                  std::vector<block_key> keys,
                                                                                  write_options options) {
  auto fail = [](error_code ec) { return std::tuple(ec, std::unique_ptr<block_writer>()); };
  if (auto ec = check_request(layout, keys)) co_return fail(ec);
  if (auto ec = check_distinct(keys)) co_return fail(ec);
  auto job = std::make_shared<write_job>(s, ns, std::move(keys));
  job->alignment = s->alignment();
  job->force = options.force;
  auto bytes = block_file_bytes(layout, job->alignment);
  job->layout = s->share(ns, layout);
  job->written.resize(layout.layers());
  std::size_t fresh = 0;
  for (std::size_t i = 0; i < job->keys.size(); ++i) {
    stored_id id{ns, job->keys[i]};
    auto there = options.force ? nullptr : s->find(id);
    if (there && *there->layout != layout) co_return fail(errc::namespace_mismatch);
    if (there)
      job->present.add(id);
    else
      job->slot_of[i] = fresh++;
  }
  if (bytes > s->options.limit_bytes / std::max<std::size_t>(fresh, 1)) co_return fail(errc::too_large);
  // On a disk that was found full, as many of the first as may find room.
  if (const auto most = s->limit(); most < s->options.limit_bytes) {
    const auto free = most + s->order.evictable() - std::min(most + s->order.evictable(), *s->used);
    const auto fit = std::min<std::uint64_t>(fresh, free / bytes);
    if (fit == 0 && fresh > 0) co_return fail(errc::store_full);
    if (fit < fresh) {
      s->counters.failed_writes += fresh - fit;
      s->counters.no_room_blocks += fresh - fit;
      job->leave_out_from(fit);
      fresh = fit;
    }
  }
  auto [ec, room] = co_await s->make_room(bytes * fresh);
  if (ec) co_return fail(ec);
  job->room = std::move(room);
  job->slots.resize(fresh);
  for (std::size_t i = 0; i < job->keys.size(); ++i) {
    if (job->slot_of[i] == write_job::none) continue;
    auto& slot = job->slots[job->slot_of[i]];
    slot.path = s->temporary_directory() + "/" + std::to_string(s->next_serial++) + ".part";
    slot.about.id = {ns, job->keys[i]};
    slot.about.layout = layout;
    slot.about.digests.resize(layout.layers());
    slot.about.digest = s->options.digest;
    slot.about.alignment = job->alignment;
  }
  std::unique_ptr<block_writer> writer = std::make_unique<file_writer>(std::move(job), options.deferred);
  co_return std::tuple(error_code(), std::move(writer));
}

}  // namespace cokv::detail

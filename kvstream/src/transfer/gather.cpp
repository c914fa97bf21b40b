#include "cokv/kvstream/gather.hpp"

#include <algorithm>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/with.hpp"
#include "transfer/run_copy.hpp"

namespace cokv::detail {
namespace {

// Enqueues with room made for it. The stream keeps the order in which groups are packed, and so the digest's.
template <class Enqueue>
awaitable<error_code> enqueue(stream on, event begin, const Enqueue& what) {
  if (begin.ready() && begin.status()) co_return begin.status();
  for (bool waits = !begin.ready();;) {
    auto ec = waits ? on.wait(begin) : error_code();
    if (!ec) {
      waits = false;
      ec = what();
    }
    if (ec != errc::queue_full) co_return ec;
    if (auto room = co_await on.async_room(as_result); !room) co_return room.error();
  }
}

// A failed or cancelled scope has kernels enqueued that still touch the slice: it ends after them.
awaitable<error_code> stopped(const verdict& v, const stream& kernels) {
  if (v) co_return error_code();
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  (void)co_await kernels.record().async_wait(asio::as_tuple(asio::deferred));
  co_return v.error();
}

// What is packed by a kernel on the host where it can reach the memory, else by the device's own copies.
struct movable {
  std::vector<run_group> groups;
  std::shared_ptr<const std::vector<buffer>> memory;
  bool on_host = true;
};

result<movable> movable_runs(const kv_view& view, const slice& what, const packing& through) {
  auto runs = view.runs(what);
  if (!runs) return runs.error();
  const bool on_host = std::ranges::all_of(runs->memory, &buffer::host_accessible);
  return movable{cut(runs->runs, through.staging.buffer_bytes()),
                 std::make_shared<const std::vector<buffer>>(std::move(runs->memory)), on_host};
}

// Groups one after the other, since digests chain. A group that fails fails those behind it, which may be past the point
// where a cancellation reaches them.
class turns {
 public:
  explicit turns(const asio::any_io_executor& ex) : ex_(ex), next_(std::make_shared<semaphore>(ex, 1)) {}

  class place {
   public:
    place(std::shared_ptr<semaphore> mine, std::shared_ptr<semaphore> next, std::shared_ptr<bool> failed)
        : mine_(std::move(mine)), next_(std::move(next)), failed_(std::move(failed)) {}
    place(place&&) noexcept = default;
    ~place() {
      if (!next_) return;
      *failed_ = true;
      next_->release();
    }
    awaitable<error_code> come() {
      if (auto turn = co_await mine_->async_acquire(1, as_result); !turn) co_return turn.error();
      co_return *failed_ ? error_code(asio::error::operation_aborted) : error_code();
    }
    void over() { std::exchange(next_, nullptr)->release(); }

   private:
    std::shared_ptr<semaphore> mine_, next_;
    std::shared_ptr<bool> failed_;
  };
  place next() {
    auto mine = std::exchange(next_, std::make_shared<semaphore>(ex_, 0));
    return {std::move(mine), next_, failed_};
  }

 private:
  asio::any_io_executor ex_;
  std::shared_ptr<semaphore> next_;
  std::shared_ptr<bool> failed_ = std::make_shared<bool>(false);
};

// A device's copies are digested when they have ended, and then put.
awaitable<error_code> seal_and_put(sink to, std::uint64_t offset, buffer staged, event packed,
                                   std::shared_ptr<digest_state> digest, turns::place mine, completion_level level) {
  if (auto waited = co_await packed.async_wait(as_result); !waited) co_return waited.error();
  if (auto ec = co_await mine.come()) co_return ec;
  digest->update(staged.bytes());
  mine.over();
  co_return co_await to.backend()->put(offset, {std::move(staged)}, {}, level);
}

}  // namespace

awaitable<result<transferred>> gather(kv_view from, slice what, sink to, std::uint64_t offset, gather_options options) {
  if (auto ec = from.check(what)) co_return ec;
  const transferred all{what.bytes(), 0};
  if (auto ec = to.check(offset, all.bytes, options.level)) co_return ec;
  if (!options.through) {
    auto pieces = from.pieces(what);
    if (!pieces) co_return pieces.error();
    if (auto ec = co_await to.backend()->put(offset, std::move(*pieces), options.begin, options.level)) co_return ec;
    co_return all;
  }

  auto parts = movable_runs(from, what, *options.through);
  if (!parts) co_return parts.error();
  const auto& kernels = options.through->kernels;
  auto digest = options.digest ? std::make_shared<digest_state>() : nullptr;
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    turns each(to.get_executor());
    // Kernels run in order: of two gathers that took staging in turns, one would stand before the other's last pieces
    // and wait there for its own beginning.
    permit turn = co_await options.through->turn->async_acquire();
    for (auto& part : parts->groups) {
      const auto n = part.bytes;
      buffer staged = (co_await options.through->staging.async_acquire()).slice(0, n);
      if (parts->on_host) {
        auto kernel = [staged, digest, memory = parts->memory, runs = std::move(part.runs)] {
          pack(digest.get(), staged.bytes(), runs, *memory);
        };
        auto launch = [&] { return stream(kernels).launch("pack", kernel); };
        if (auto ec = co_await enqueue(kernels, options.begin, launch)) co_return ec;
      } else {
        const auto copies = packing_copies(staged, part.runs, *parts->memory);
        auto copy = [&] { return stream(kernels).copy_batch(copies, "pack"); };
        if (auto ec = co_await enqueue(kernels, options.begin, copy)) co_return ec;
      }
      const event packed = kernels.record();
      if (parts->on_host || !digest)
        group.spawn(to.backend()->put(offset, {std::move(staged)}, packed, options.level));
      else
        group.spawn(seal_and_put(to, offset, std::move(staged), packed, digest, each.next(), options.level));
      offset += n;
    }
    co_return error_code();
  });
  co_await asio::this_coro::throw_if_cancelled(false);  // what was cancelled ends after its kernels all the same
  if (auto ec = co_await stopped(v, kernels)) co_return ec;
  co_return transferred{all.bytes, digest ? digest->value() : 0};
}

awaitable<result<transferred>> scatter(source from, std::uint64_t offset, kv_view to, slice what,
                                       scatter_options options) {
  if (auto ec = to.check(what)) co_return ec;
  if (!what.distinct()) co_return errc::invalid_argument;
  const transferred all{what.bytes(), 0};
  if (auto ec = from.check(offset, all.bytes)) co_return ec;
  if (!options.through) {
    if (options.digest) co_return errc::invalid_argument;
    auto pieces = to.pieces(what);
    if (!pieces) co_return pieces.error();
    if (auto ec = co_await from.backend()->get(offset, std::move(*pieces), options.begin)) co_return ec;
    if (auto ec = to.check(what)) co_return ec;  // written, but for nobody: freed meanwhile
    co_return all;
  }

  // Digests chain, so groups are unpacked in order; the next one is on its way meanwhile.
  auto parts = movable_runs(to, what, *options.through);
  if (!parts) co_return parts.error();
  const auto& kernels = options.through->kernels;
  auto digest = options.digest || options.make_digest ? std::make_shared<digest_state>() : nullptr;
  auto unpacked = [&](buffer staged, std::vector<kv_run> runs) -> awaitable<error_code> {
    if (parts->on_host) {
      auto kernel = [staged = std::move(staged), digest, memory = parts->memory, runs = std::move(runs)] {
        unpack(digest.get(), staged.bytes(), runs, *memory);
      };
      auto launch = [&] { return stream(kernels).launch("unpack", kernel); };
      co_return co_await enqueue(kernels, {}, launch);
    }
    if (digest) digest->update(staged.bytes());
    const auto copies = unpacking_copies(staged, runs, *parts->memory);
    auto copy = [&] { return stream(kernels).copy_batch(copies, "unpack"); };
    co_return co_await enqueue(kernels, {}, copy);
  };
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    turns each(from.get_executor());
    for (auto& part : parts->groups) {
      const auto n = part.bytes;
      buffer staged = (co_await options.through->staging.async_acquire()).slice(0, n);
      group.spawn([&, staged = std::move(staged), runs = std::move(part.runs), at = offset,
                   mine = each.next()]() mutable -> awaitable<error_code> {
        if (auto ec = co_await from.backend()->get(at, {staged}, options.begin)) co_return ec;
        if (auto ec = co_await mine.come()) co_return ec;
        if (auto ec = co_await unpacked(std::move(staged), std::move(runs))) co_return ec;
        mine.over();
        co_await asio::this_coro::throw_if_cancelled(false);
        co_return co_await drained(kernels.record());
      });
      offset += n;
    }
    co_return error_code();
  });
  co_await asio::this_coro::throw_if_cancelled(false);  // what was cancelled ends after its kernels all the same
  if (auto ec = co_await stopped(v, kernels)) co_return ec;
  if (options.digest && digest->value() != *options.digest) co_return errc::digest_mismatch;
  if (auto ec = to.check(what)) co_return ec;
  co_return transferred{all.bytes, digest ? digest->value() : 0};
}

}  // namespace cokv::detail

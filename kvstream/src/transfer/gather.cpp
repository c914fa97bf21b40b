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
template <class Kernel>
awaitable<error_code> launch(stream on, std::string_view name, const Kernel& kernel, event begin) {
  if (begin.ready() && begin.status()) co_return begin.status();
  for (bool waits = !begin.ready();;) {
    auto ec = waits ? on.wait(begin) : error_code();
    if (!ec) {
      waits = false;
      ec = on.launch(name, kernel);
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

// What a kernel moves, which runs on the host.
result<kv_runs> host_runs(const kv_view& view, const slice& what) {
  auto runs = view.runs(what);
  if (runs && !std::ranges::all_of(runs->memory, &buffer::host_accessible)) return errc::wrong_device;
  return runs;
}

}  // namespace

awaitable<result<transferred>> gather(kv_view from, slice what, sink to, std::uint64_t offset, gather_options options) {
  if (auto ec = from.check(what)) co_return ec;
  const transferred all{what.bytes(), 0};
  if (auto ec = to.check(offset, all.bytes, options.level)) co_return ec;
  if (!options.through) {
    auto pieces = from.pieces(what);
    if (!pieces) co_return pieces.error();
    if (auto ec = co_await to.backend()->put(offset, std::move(*pieces), options.begin)) co_return ec;
    co_return all;
  }

  auto runs = host_runs(from, what);
  if (!runs) co_return runs.error();
  auto groups = cut(runs->runs, options.through->staging.buffer_bytes());
  auto memory = std::make_shared<const std::vector<buffer>>(std::move(runs->memory));
  auto digest = options.digest ? std::make_shared<digest_state>() : nullptr;
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    // Kernels run in order: of two gathers that took staging in turns, one would stand before the other's last pieces
    // and wait there for its own beginning.
    permit turn = co_await options.through->turn->async_acquire();
    for (auto& part : groups) {
      const auto n = part.bytes;
      buffer staged = (co_await options.through->staging.async_acquire()).slice(0, n);
      auto kernel = [staged, digest, memory, runs = std::move(part.runs)] {
        pack(digest.get(), staged.bytes(), runs, *memory);
      };
      if (auto ec = co_await launch(options.through->kernels, "pack", kernel, options.begin)) co_return ec;
      const event packed = options.through->kernels.record();
      group.spawn(to.backend()->put(offset, {std::move(staged)}, packed));
      offset += n;
    }
    co_return error_code();
  });
  co_await asio::this_coro::throw_if_cancelled(false);  // what was cancelled ends after its kernels all the same
  if (auto ec = co_await stopped(v, options.through->kernels)) co_return ec;
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
  auto runs = host_runs(to, what);
  if (!runs) co_return runs.error();
  auto groups = cut(runs->runs, options.through->staging.buffer_bytes());
  auto memory = std::make_shared<const std::vector<buffer>>(std::move(runs->memory));
  auto digest = options.digest || options.make_digest ? std::make_shared<digest_state>() : nullptr;
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    std::vector<std::shared_ptr<semaphore>> turns;
    for (std::size_t i = 0; i <= groups.size(); ++i)
      turns.push_back(std::make_shared<semaphore>(from.get_executor(), i == 0 ? 1 : 0));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto n = groups[i].bytes;
      buffer staged = (co_await options.through->staging.async_acquire()).slice(0, n);
      group.spawn([&, staged = std::move(staged), runs = std::move(groups[i].runs), at = offset, mine = turns[i],
                   next = turns[i + 1]]() mutable -> awaitable<error_code> {
        if (auto ec = co_await from.backend()->get(at, {staged}, options.begin)) co_return ec;
        auto my_turn = co_await mine->async_acquire();
        auto kernel = [staged = std::move(staged), digest, memory, runs = std::move(runs)] {
          unpack(digest.get(), staged.bytes(), runs, *memory);
        };
        if (auto ec = co_await launch(options.through->kernels, "unpack", kernel, {})) co_return ec;
        next->release();
        co_await asio::this_coro::throw_if_cancelled(false);
        co_return co_await drained(options.through->kernels.record());
      });
      offset += n;
    }
    co_return error_code();
  });
  co_await asio::this_coro::throw_if_cancelled(false);  // what was cancelled ends after its kernels all the same
  if (auto ec = co_await stopped(v, options.through->kernels)) co_return ec;
  if (options.digest && digest->value() != *options.digest) co_return errc::digest_mismatch;
  if (auto ec = to.check(what)) co_return ec;
  co_return transferred{all.bytes, digest ? digest->value() : 0};
}

}  // namespace cokv::detail

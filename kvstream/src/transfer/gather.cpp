#include "cokv/kvstream/gather.hpp"

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "transfer/packing_parts.hpp"

namespace cokv::detail {
namespace {

// So little is packed at once where it is asked for: a thread of the device would take longer to come to it, and stands
// behind what that computes.
constexpr std::uint64_t most_here = 64 << 10;

struct device_group {
  std::uint64_t at = 0;  // in the slice
  buffer staging;
  std::uint64_t bytes = 0;
  device_move made;
};

// What a device has packed is digested, by the host or from the leaves that the device made, and then put.
awaitable<error_code> seal_and_put(sink to, std::uint64_t offset, device_group group, event packed,
                                   std::shared_ptr<slice_digest> digest, turns::place mine, completion_level level) {
  if (auto waited = co_await packed.async_wait(as_result); !waited) co_return waited.error();
  auto staged = group.staging.slice(0, group.bytes);
  if (digest->by_leaves()) {
    if (group.made.leaves.empty())
      digest->take(group.at, staged.bytes());
    else
      digest->take(group.at, group.made.leaves);
    mine.over();
  } else {
    if (auto ec = co_await mine.come()) co_return ec;
    digest->in_order().update(staged.bytes());
    mine.over();
  }
  group = {};
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

  const auto& through = *options.through;
  auto parts = movable_runs(from, what, through, options.digest);
  if (!parts) co_return parts.error();
  const auto& kernels = through.kernels;
  auto digest = std::make_shared<slice_digest>(options.digest, all.bytes, parts->by == mover::kernel);
  const bool here = parts->by == mover::host && all.bytes <= most_here && options.begin.ready();
  if (here && options.begin.status()) co_return options.begin.status();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    turns each(to.get_executor());
    // Kernels run in order: of two gathers that took staging in turns, one would stand before the other's last pieces
    // and wait there for its own beginning.
    permit turn = co_await through.turn->async_acquire();
    std::uint64_t at = 0;
    for (auto& part : parts->groups) {
      const auto n = part.bytes;
      buffer staging = co_await through.staging.async_acquire();
      buffer staged = staging.slice(0, n);
      if (here) {
        pack(digest->in_order(), staged.bytes(), part.runs, *parts->memory);
        group.spawn(to.backend()->put(offset + at, {std::move(staged)}, event(), options.level));
      } else if (parts->by == mover::host) {
        auto kernel = [staged, digest, memory = parts->memory, runs = std::move(part.runs)] {
          pack(digest->in_order(), staged.bytes(), runs, *memory);
        };
        auto launch = [&] { return stream(kernels).launch("pack", kernel); };
        if (auto ec = co_await enqueue(kernels, options.begin, launch)) co_return ec;
        group.spawn(to.backend()->put(offset + at, {std::move(staged)}, kernels.record(), options.level));
      } else {
        device_move made;
        if (auto ec =
                co_await move_on_device(through, options.begin, true, *parts, part, staging, digest->by_leaves(), made))
          co_return ec;
        if (digest->made())
          group.spawn(seal_and_put(to, offset + at, {at, std::move(staging), n, made}, kernels.record(), digest,
                                   each.next(), options.level));
        else
          group.spawn(to.backend()->put(offset + at, {std::move(staged)}, kernels.record(), options.level));
      }
      at += n;
    }
    co_return error_code();
  });
  co_await asio::this_coro::throw_if_cancelled(false);  // what was cancelled ends after its kernels all the same
  if (auto ec = co_await stopped(v, kernels)) co_return ec;
  co_return transferred{all.bytes, digest->value()};
}

}  // namespace cokv::detail

#include <algorithm>

#include "cokv/kvstream/gather.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "transfer/packing_parts.hpp"

namespace cokv {

error_code unpack_here(const kv_view& to, const slice& what, std::span<const std::byte> packed) {
  if (packed.size() != what.bytes() || !what.distinct()) return errc::invalid_argument;
  const auto runs = to.runs(what);
  if (!runs) return runs.error();
  if (!std::ranges::all_of(runs->memory, &buffer::host_accessible)) return errc::wrong_device;
  detail::running_digest none(digest_algorithm::none);
  detail::unpack(none, packed, runs->runs, runs->memory);
  return {};
}

}  // namespace cokv

namespace cokv::detail {

awaitable<result<transferred>> scatter(source from, std::uint64_t offset, kv_view to, slice what,
                                       scatter_options options) {
  if (auto ec = to.check(what)) co_return ec;
  if (!what.distinct()) co_return errc::invalid_argument;
  const transferred all{what.bytes(), 0};
  if (auto ec = from.check(offset, all.bytes)) co_return ec;
  if (options.digest && (!options.through || options.algorithm == digest_algorithm::none))
    co_return errc::invalid_argument;
  if (!options.through) {
    auto pieces = to.pieces(what);
    if (!pieces) co_return pieces.error();
    if (auto ec = co_await from.backend()->get(offset, std::move(*pieces), options.begin)) co_return ec;
    if (auto ec = to.check(what)) co_return ec;  // written, but for nobody: freed meanwhile
    co_return all;
  }

  // Digests chain, so groups are unpacked in order; the next one is on its way meanwhile.
  const auto& through = *options.through;
  auto parts = movable_runs(to, what, through, options.algorithm);
  if (!parts) co_return parts.error();
  const auto& kernels = through.kernels;
  auto digest = std::make_shared<slice_digest>(options.algorithm, all.bytes, parts->by == mover::kernel);
  auto unpacked = [&](buffer staging, run_group& part, std::uint64_t at, device_move& made) -> awaitable<error_code> {
    auto staged = staging.slice(0, part.bytes);
    if (parts->by == mover::host) {
      auto kernel = [staged = std::move(staged), digest, memory = parts->memory, runs = std::move(part.runs)] {
        unpack(digest->in_order(), staged.bytes(), runs, *memory);
      };
      auto launch = [&] { return stream(kernels).launch("unpack", kernel); };
      co_return co_await enqueue(kernels, {}, launch);
    }
    if (auto ec =
            co_await move_on_device(through, {}, false, *parts, part, std::move(staging), digest->by_leaves(), made))
      co_return ec;
    // Until the staging buffer goes back its bytes stay: the device reads them, too.
    if (!digest->by_leaves())
      digest->in_order().update(staged.bytes());
    else if (made.leaves.empty())
      digest->take(at, staged.bytes());
    co_return error_code();
  };
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    turns each(from.get_executor());
    std::uint64_t begins = 0;
    for (auto& part : parts->groups) {
      buffer staging = co_await through.staging.async_acquire();
      group.spawn([&, staging = std::move(staging), &part = part, at = begins,
                   mine = each.next()]() mutable -> awaitable<error_code> {
        if (auto ec = co_await from.backend()->get(offset + at, {staging.slice(0, part.bytes)}, options.begin))
          co_return ec;
        if (auto ec = co_await mine.come()) co_return ec;
        device_move made;
        if (auto ec = co_await unpacked(staging, part, at, made)) co_return ec;
        mine.over();
        co_await asio::this_coro::throw_if_cancelled(false);
        const auto done = kernels.record();
        if (made.leaves.empty()) {
          staging = {};
          co_return co_await drained(done);
        }
        if (auto ec = co_await drained(done)) co_return ec;
        digest->take(at, made.leaves);
        co_return error_code();
      });
      begins += part.bytes;
    }
    co_return error_code();
  });
  co_await asio::this_coro::throw_if_cancelled(false);  // what was cancelled ends after its kernels all the same
  if (auto ec = co_await stopped(v, kernels)) co_return ec;
  if (options.digest && digest->value() != *options.digest) co_return errc::digest_mismatch;
  if (auto ec = to.check(what)) co_return ec;
  co_return transferred{all.bytes, digest->value()};
}

}  // namespace cokv::detail

#include "transfer/packing_parts.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "kernel/pack_kernels.hpp"
#include "kernel/pack_table.hpp"

namespace cokv::detail {
namespace {

// Extents smaller than this on average are packed by a kernel. A copy engine takes half a microsecond to a whole one
// for each copy of a batch, in which PCIe 5.0 moves 25 to 50 KiB (bench_gather --device cuda:0: on an H100 the two
// are even between 16 and 64 KiB).
constexpr std::uint64_t least_copied = 32 << 10;

bool small(std::span<const kv_run> runs) {
  std::uint64_t bytes = 0, extents = 0;
  for (const auto& run : runs) {
    bytes += run.bytes();
    extents += run.rows * run.chunks;
  }
  return bytes < extents * least_copied;
}

std::vector<buffer> memory_of(const run_group& group, std::span<const buffer> memory) {
  std::vector<std::uint32_t> used;
  for (const auto& run : group.runs)
    if (used.empty() || used.back() != run.buffer) used.push_back(run.buffer);
  std::ranges::sort(used);
  const auto repeated = std::ranges::unique(used);
  used.erase(repeated.begin(), repeated.end());
  std::vector<buffer> out;
  for (auto i : used) out.push_back(memory[i]);
  return out;
}

}  // namespace

std::shared_ptr<pack_kernels> make_pack_kernels() { return std::make_shared<pack_kernels>(); }

awaitable<error_code> stopped(const verdict& v, const stream& kernels) {
  if (v) co_return error_code();
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  (void)co_await kernels.record().async_wait(asio::as_tuple(asio::deferred));
  co_return v.error();
}

result<movable> movable_runs(const kv_view& view, const slice& what, const packing& through, digest_algorithm digest) {
  auto runs = view.runs(what);
  if (!runs) return runs.error();
  movable out;
  const bool on_host = std::ranges::all_of(runs->memory, &buffer::host_accessible);
  out.memory = std::make_shared<const std::vector<buffer>>(std::move(runs->memory));
  const auto room = through.staging.buffer_bytes();
  if (!on_host) {
    out.by = mover::copies;
    const bool by_kernel = through.way == packing_way::automatic
                               ? digest == digest_algorithm::xxh3_64_tree || small(runs->runs)
                               : through.way == packing_way::kernel;
    if (by_kernel && through.device->on(through.kernels)) {
      out.groups = cut_by_leaves(runs->runs, room);
      if (!out.groups.empty()) {
        out.by = mover::kernel;
        return out;
      }
    }
  }
  out.groups = cut(runs->runs, room);
  return out;
}

awaitable<error_code> move_on_device(const packing& through, event begin, bool packs, const movable& parts,
                                     const run_group& group, buffer staging, bool by_leaves, device_move& made) {
  const auto& on = through.kernels;
  if (parts.by == mover::kernel && staging.host_accessible()) {
    const auto job = lay_out(staging.bytes(), group, *parts.memory, by_leaves);
    const auto memory = memory_of(group, *parts.memory);
    bool reached = false;
    auto launch = [&] { return through.device->launch(on, packs, job, staging, memory, reached); };
    if (auto ec = co_await enqueue(on, begin, launch)) co_return ec;
    if (reached) {
      if (by_leaves) made.leaves = {job.leaves, leaves_of(group.bytes)};
      co_return error_code();
    }
  }
  const auto staged = staging.slice(0, group.bytes);
  const auto copies =
      packs ? packing_copies(staged, group, *parts.memory) : unpacking_copies(staged, group, *parts.memory);
  auto copy = [&] { return stream(on).copy_batch(copies, packs ? "pack" : "unpack"); };
  co_return co_await enqueue(on, begin, copy);
}

}  // namespace cokv::detail

// bench_gather's question on a device: extents of its memory packed into pinned buffers by batches of copies and by the
// kernel, beside the plain copy of as many bytes that lie together.
#pragma once

#include <cstdio>
#include <fstream>
#include <random>
#include <string>

#include "cokv/kvstream/gather.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/size.hpp"
#include "kernel/pack_kernels.hpp"
#include "kernel/pack_table.hpp"
#include "throughput.hpp"

namespace cokv::bench {

enum class device_way { plain, copies, kernel, digested };

// All groups through the pool, which holds the host up where the device is behind.
inline awaitable<error_code> pack_all(stream on, staging_pool& staging, detail::pack_kernels& kernels,
                                      const std::vector<detail::run_group>& groups, const std::vector<buffer>& memory,
                                      device_way way) {
  for (const auto& group : groups) {
    buffer room = co_await staging.async_acquire();
    const auto staged = room.slice(0, group.bytes);
    error_code ec;
    bool reached = true;
    if (way == device_way::plain) {
      ec = on.copy(staged, memory[0].slice(0, group.bytes));
    } else if (way == device_way::copies) {
      ec = on.copy_batch(detail::packing_copies(staged, group, memory));
    } else {
      const auto job = detail::lay_out(room.bytes(), group, memory, way == device_way::digested);
      ec = kernels.launch(on, true, job, room, memory, reached);
    }
    if (!ec && !reached) ec = errc::wrong_device;
    if (ec) co_return ec;
  }
  auto [ec] = co_await on.async_drain(asio::as_tuple(asio::deferred));
  co_return ec;
}

// 0, or what main() returns.
inline int gather_on_device(const std::string& name, std::size_t bytes, std::size_t room, int repeat,
                            const std::string& json) {
  asio::io_context context{1};
  auto dev = open_device(context.get_executor(), name);
  if (!dev) {
    std::printf("no device %s here: %s\n", name.c_str(), explain_device(name).c_str());
    return 0;
  }
  auto on = dev->make_stream({.name = "pack"}).value();
  auto staging = staging_pool::make(*dev, room, 8).value();
  const std::vector<buffer> memory = {dev->allocate(2 * bytes).value()};
  detail::pack_kernels kernels;
  const bool has_kernels = kernels.on(on);
  if (!has_kernels) std::printf("no packing kernel on %s: its copies alone\n\n", name.c_str());
  std::printf(
      "| extent | plain copy | batched copies | kernel | with digest | CPU s a GB: plain, copies, kernel, with digest "
      "|\n"
      "|---|---|---|---|---|---|\n");
  std::string rows;
  std::mt19937_64 random(1);
  for (std::size_t extent = 128; extent <= (1 << 20); extent *= extent == 128 ? 8 : 4) {
    std::vector<kv_run> runs;
    for (std::size_t at = 0; at + extent <= bytes; at += extent)
      runs.push_back({.offset = 2 * at, .chunk_bytes = extent});
    std::shuffle(runs.begin(), runs.end(), random);
    const auto groups = detail::cut_by_leaves(runs, room);
    std::vector<throughput> measured[4];
    error_code failed;
    for (int r = 0; r <= repeat; ++r)  // the first time round is not counted
      for (auto way : {device_way::plain, device_way::copies, device_way::kernel, device_way::digested}) {
        if (!has_kernels && way >= device_way::kernel) continue;
        const auto took = timed(runs.size() * extent, [&] {
          asio::co_spawn(context, pack_all(on, staging, kernels, groups, memory, way),
                         [&](std::exception_ptr e, error_code ec) { failed = e ? error_code(errc::closed) : ec; });
          context.restart();
          cokv::run(context, {.spin = duration::max()});
        });
        if (failed) {
          std::printf("packing failed: %s\n", failed.message().c_str());
          return 1;
        }
        if (r > 0) measured[static_cast<int>(way)].push_back(took);
      }
    throughput m[4];
    for (int way = 0; way < 4; ++way)
      if (!measured[way].empty()) m[way] = median(measured[way]);
    std::printf("| %s | %.2f GB/s | %.2f GB/s | %.2f GB/s | %.2f GB/s | %.3f, %.3f, %.3f, %.3f |\n",
                format_size(extent).c_str(), m[0].gb_s, m[1].gb_s, m[2].gb_s, m[3].gb_s, m[0].cpu_s_gb, m[1].cpu_s_gb,
                m[2].cpu_s_gb, m[3].cpu_s_gb);
    char row[300];
    std::snprintf(row, sizeof row,
                  "%s\n  {\"extent\": %zu, \"plain_gb_s\": %.3f, \"copies_gb_s\": %.3f, \"kernel_gb_s\": %.3f, "
                  "\"kernel_digest_gb_s\": %.3f}",
                  rows.empty() ? "" : ",", extent, m[0].gb_s, m[1].gb_s, m[2].gb_s, m[3].gb_s);
    rows += row;
  }
  if (!json.empty()) std::ofstream(json) << "[" << rows << "\n]\n";
  return 0;
}

}  // namespace cokv::bench

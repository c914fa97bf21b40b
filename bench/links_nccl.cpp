// How close does a link over NCCL come to the loop of ncclSend and ncclRecv that one would write by hand? Chunks of 4 KiB to 16 MiB
// go from memory of one GPU to memory of another, or of the same one, where NCCL takes two ranks there (from 2.31 on, told
// NCCL_MULTI_RANK_GPU_ENABLE=1). Both ends are of this process, a thread each; the loop has a send and its receive in a group, from
// one thread, and waits at its end: on communicators that block, and on such as don't, which a link has, and for which NCCL starts a
// thread a group. Ratios are to the latter. A put is answered by itself, when its bytes are there.
//
//     bench_links_nccl [--devices cuda:0,cuda:1] [--bytes 1GiB] [--set 256MiB] [--repeat 5] [--chunk 4MiB] [--count 32] [--json FILE]
#include <cuda_runtime_api.h>

#include <cstring>

#include "cokv/runtime/result.hpp"
#include "link/nccl/nccl_api.hpp"
#include "link_table.hpp"
#include "spin_kernel.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;
using detail::nccl_api;
using detail::nccl_error;

struct nccl_settings : link_settings {
  device_staging staging = {.chunk = 4 << 20, .count = 32};
  std::vector<std::string> devices{"cuda:0", "cuda:1"};

  link_options link() const {
    return {.digest = digest_algorithm::none,
            .chunk = staging.chunk,
            .greeting = std::chrono::seconds(10),
            .silence = std::chrono::minutes(1)};
  }
};

// Two communicators of two ranks, made and used from one thread.
class by_hand {
 public:
  by_hand(const nccl_api& api, device from, device to, bool blocking) : api_(api), streams_{made(from), made(to)} {
    ncclUniqueId id;
    said(api_.GetUniqueId(&id));
    said(api_.GroupStart());
    for (int rank = 0; rank < 2; ++rank)
      must(!streams_[rank].launch_native("", {},
                                         [&](void*) {
                                           ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
                                           config.blocking = blocking;
                                           said(api_.CommInitRankConfig(&comms_[rank], 2, id, rank, &config));
                                         }),
           "a rank");
    end_group();
  }

  // All of it, round and round, a chunk a group.
  void move(const buffer& from, const buffer& to, std::size_t bytes, std::size_t chunk) {
    std::array<cudaStream_t, 2> native;
    for (int rank = 0; rank < 2; ++rank)
      must(!streams_[rank].launch_native("", {}, [&](void* s) { native[rank] = static_cast<cudaStream_t>(s); }),
           "a stream");
    for (std::size_t done = 0; done < bytes; done += chunk) {
      const auto at = done % from.size();
      said(api_.GroupStart());
      said(api_.Send(from.data() + at, chunk, ncclInt8, 1, comms_[0], native[0]));
      said(api_.Recv(to.data() + at, chunk, ncclInt8, 0, comms_[1], native[1]));
      end_group();
    }
    for (auto& s : streams_) must(!synchronize(s), "waiting");
  }

 private:
  static stream made(device& d) { return d.make_stream({.name = "by hand"}).value(); }
  void end_group() {
    said(api_.GroupEnd());
    for (auto* comm : comms_)
      while (detail::nccl_state(api_, comm) == ncclInProgress) continue;
  }
  static void said(ncclResult_t status) {
    if (status == ncclSuccess || status == ncclInProgress) return;
    std::fprintf(stderr, "%s: ", nccl_error(status).message().c_str());
    must(false, "NCCL by hand");
  }

  const nccl_api api_;
  std::array<stream, 2> streams_;
  std::array<ncclComm_t, 2> comms_{};
};

struct side {
  std::optional<window_table> windows;
  buffer memory;
  peer_link link;

  void open(device d, std::size_t bytes, const device_staging& how) {
    windows.emplace(d.get_executor());
    must(!windows->stage(d, how), "staging");
    memory = d.allocate(bytes).value();
  }
};

awaitable<void> write(device d, buffer to, buffer from) {
  auto s = d.make_stream({.name = "filling"}).value();
  must(!s.copy(to, from), "filling");
  co_await s.record().async_wait();
}

void compare(const nccl_settings& s, const nccl_api& api) {
  const auto& names = s.devices;
  worker near, far;  // and behind them what belongs to their threads
  auto here = open_device(near.executor(), names[0]).value(), there = open_device(far.executor(), names[1]).value();
  side mine, theirs;
  link_listener door;
  window landing;
  const auto url = far.get([&]() -> awaitable<std::string> {
    theirs.open(there, s.set, s.staging);
    door = link_listener::listen(*theirs.windows, "nccl://localhost:0", s.link()).value();
    landing = theirs.windows->expose({theirs.memory}, window_access::both).value();
    asio::co_spawn(
        far.executor(), [&]() -> awaitable<void> { theirs.link = co_await door.async_accept(); }, asio::detached);
    co_return door.url();
  }());
  auto pattern = here.allocate(s.set, memory_kind::pinned).value(),
       seen = there.allocate(s.set, memory_kind::pinned).value();
  fill(pattern);
  near.get([&]() -> awaitable<void> {
    mine.open(here, s.set, s.staging);
    co_await write(here, mine.memory, pattern);
    mine.link = co_await async_connect(*mine.windows, url, s.link());
  }());
  asio::io_context own(1);
  const auto first = open_device(own.get_executor(), names[0]).value(),
             last = open_device(own.get_executor(), names[1]).value();
  by_hand blocking(api, first, last, true), not_blocking(api, first, last, false);
  for (auto* each : {&blocking, &not_blocking})
    each->move(mine.memory, theirs.memory, s.set, s.set);  // connects the two

  std::printf("nccl from %s to %s, %s a run, medians of %d\n\n", names[0].c_str(), names[1].c_str(),
              format_size(s.bytes).c_str(), s.repeat);
  link_table table("nccl", "chunk", {{"blocking", "blocking"}, {"raw", "not blocking", true}, {"link", "link"}});
  table.heading();
  for (auto chunk : s.chunks()) {
    const auto bytes = std::min(s.bytes, chunk << 12);  // few small ones take as long each
    for (int r = 0; r < s.repeat; ++r) {
      std::vector<throughput> round;
      for (auto* each : {&blocking, &not_blocking})
        round.push_back(timed(bytes, [&] { each->move(mine.memory, theirs.memory, bytes, chunk); }));
      round.push_back(timed(bytes, [&] {
        near.get([](side& from, window_ref to, std::size_t n, std::size_t size) -> awaitable<void> {
          co_await put_all(from.link.to(to), from.memory, n, size);
        }(mine, landing.ref(), bytes, chunk));
      }));
      table.add(std::move(round));
    }
    table.row(chunk);
  }
  far.get(write(there, seen, theirs.memory));
  must(std::memcmp(seen.data(), pattern.data(), s.set) == 0, "comparing what came");
  table.write(s.json);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How close does a link over NCCL come to a hand-written loop of its calls?"};
  nccl_settings s;
  s.bytes = std::size_t{1} << 30;
  s.set = 256 << 20;
  s.repeat = 5;
  s.add_to(app);
  s.add_size(app, "--chunk", s.staging.chunk, "bytes that a transfer is cut into");
  app.add_option("--count", s.staging.count, "of its chunks, each way");
  app.add_option("--devices", s.devices, "from, to")->delimiter(',')->expected(2)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  must(s.set % s.most == 0, "these sizes: that");
  const auto api = nccl_api::load();
  bool all = api.has_value();
  {
    asio::io_context context(1);
    for (const auto& name : s.devices) all = all && open_device(context.get_executor(), name).has_value();
  }
  if (!all) {
    std::printf("no %s here\n", api ? "such devices" : "NCCL");
    return 0;
  }
  compare(s, *api);
  std::fflush(stdout);
  std::_Exit(0);
}

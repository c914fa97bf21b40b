// Ranks on devices of fake_cuda in one context, each with a stream on which it adds up by fake_nccl, driven by hand as two_devices.
#pragma once

#include <memory>
#include <vector>

#include "cokv/kvstream/nccl_group.hpp"
#include "cokv/runtime/error.hpp"
#include "nccl/linked.hpp"

namespace cokv::test {

inline void start_group_machine(std::uint32_t devices, std::uint64_t seed = 0, fake_nccl::options how = {}) {
  fake_cuda::reset({.devices = static_cast<int>(devices), .seed = seed, .max_delay = 3});
  fake_nccl::reset(how);
}

struct group_machine : nccl_is_fake, driven {
  struct rank {
    device on;
    stream compute;
    std::shared_ptr<nccl_group> group;
    error_code why;  // it has not joined
    bool over = false;
  };
  std::vector<rank> ranks;

  explicit group_machine(std::uint32_t n) {
    for (std::uint32_t r = 0; r < n; ++r) ranks.push_back(made(r));
  }
  rank made(std::uint32_t gpu) {
    rank out{open_device(ctx.get_executor(), "cuda:" + std::to_string(gpu)).value(), {}, {}, {}};
    out.compute = out.on.make_stream({.name = "compute"}).value();
    return out;
  }

  std::vector<std::byte> id() { return get(make_nccl_group_id(ranks[0].on)).value(); }
  void join(std::uint32_t r, std::vector<std::byte> id, nccl_group_options o = {}) {
    auto& mine = ranks[r];
    const auto n = static_cast<std::uint32_t>(ranks.size());
    asio::co_spawn(ctx, nccl_group::join(mine.on, mine.compute, {r, n, std::move(id)}, o),
                   [&mine](std::exception_ptr e, result<std::shared_ptr<nccl_group>> g) {
                     CHECK(!e);
                     mine.over = true;
                     if (g)
                       mine.group = std::move(*g);
                     else
                       mine.why = g.error();
                   });
  }
  void join_all(nccl_group_options o = {}) {
    const auto with = id();
    for (std::uint32_t r = 0; r < ranks.size(); ++r) join(r, with, o);
    REQUIRE(drive([&] { return std::ranges::all_of(ranks, &rank::over); }));
  }

  // Device memory (the stand-in's is the host's).
  buffer numbers(std::uint32_t r, std::size_t n, float first) {
    auto b = ranks[r].on.allocate(n * sizeof(float)).value();
    for (std::size_t i = 0; i < n; ++i) floats(b)[i] = first + 0.1f * static_cast<float>(i * (r + 1));
    return b;
  }
  static float* floats(const buffer& b) { return reinterpret_cast<float*>(b.data()); }
  static std::vector<float> copy_of(const buffer& b) { return {floats(b), floats(b) + b.size() / sizeof(float)}; }

  static awaitable<error_code> any_cancellation(awaitable<error_code> of) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    co_return co_await std::move(of);
  }
  // Its end is what the operation gives; the numbers are kept by the caller.
  void sum(std::uint32_t r, buffer numbers, ending& e, asio::cancellation_slot stop = {}) {
    asio::co_spawn(ctx, any_cancellation(ranks[r].group->all_reduce(std::move(numbers))),
                   asio::bind_cancellation_slot(stop, [&e](std::exception_ptr thrown, error_code ec) {
                     e.over = true;
                     e.ec = thrown ? make_error_code(errc::device_failed) : ec;
                   }));
  }
  bool at_rest() {
    return drive([] { return fake_nccl::live_communicators() == 0; });
  }
};

}  // namespace cokv::test

// Two devices of fake_cuda in one context, with a rank of fake_nccl's on each, driven by hand: a step counts when
// something happened, so that a sweep over steps doesn't count the time that a thread takes.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <optional>
#include <thread>

#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "link/nccl/nccl_pair.hpp"
#include "support/fake_cuda.hpp"
#include "support/fake_nccl.hpp"

namespace cokv::test {

constexpr std::size_t most_rounds = 5'000'000;

// The pair is at rest: no communicator is left, nothing used memory wrongly, and nothing is kept.
inline void check_clean() {
  const auto wrong = fake_cuda::violations();
  CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
  CHECK(fake_nccl::live_communicators() == 0);
  CHECK(fake_cuda::live_allocations() == 0);
  CHECK(fake_cuda::live_streams() == 0);
  CHECK(fake_cuda::live_events() == 0);
}

inline void start_machine(std::uint64_t seed = 0, fake_nccl::options how = {}) {
  fake_cuda::reset({.devices = 2, .seed = seed, .max_delay = 3});
  fake_nccl::reset(how);
}

// A context that is driven by hand.
struct driven {
  asio::io_context ctx{1};

  // One round of the loop and of the devices; whether anything happened.
  bool round() {
    const bool ran = ctx.poll() > 0;
    ctx.restart();
    const bool found = progress::of(ctx.get_executor()).poll() > 0;
    const bool moved = fake_cuda::step();
    if (!ran && !found && !moved) std::this_thread::yield();
    return ran || found || moved;
  }
  template <class Until>
  bool drive(Until until) {
    for (std::size_t i = 0; i < most_rounds && !until(); ++i) round();
    return until();
  }
  template <class T>
  T get(awaitable<T> body) {
    std::optional<T> got;
    asio::co_spawn(ctx, std::move(body), [&](std::exception_ptr e, T value) {
      if (e) std::rethrow_exception(e);
      got.emplace(std::move(value));
    });
    REQUIRE(drive([&] { return got.has_value(); }));
    return std::move(*got);
  }
};

struct two_devices : driven {
  std::array<device, 2> on{open_device(ctx.get_executor(), "cuda:0").value(),
                           open_device(ctx.get_executor(), "cuda:1").value()};

  detail::nccl_id id() { return get(detail::make_nccl_id(fake_nccl::table(), on[0])).value(); }
  awaitable<result<detail::nccl_pair>> connect(detail::nccl_id id, int rank, detail::nccl_pair_options o = {}) {
    return detail::nccl_pair::connect(fake_nccl::table(), on[static_cast<std::size_t>(rank)], id, rank, o);
  }
  // Both sides.
  std::array<detail::nccl_pair, 2> pairs(detail::nccl_pair_options o = {}) {
    const auto with_id = id();
    std::array<std::optional<result<detail::nccl_pair>>, 2> made;
    for (int rank = 0; rank < 2; ++rank)
      asio::co_spawn(ctx, connect(with_id, rank, o), [&made, rank](std::exception_ptr, result<detail::nccl_pair> p) {
        made[static_cast<std::size_t>(rank)].emplace(std::move(p));
      });
    REQUIRE(drive([&] { return made[0] && made[1]; }));
    return {std::move(made[0]->value()), std::move(made[1]->value())};
  }

  // Device memory (the stand-in's is the host's) that says what it is.
  buffer filled(int rank, std::size_t n, int value) {
    auto b = on[static_cast<std::size_t>(rank)].allocate(n).value();
    std::memset(b.data(), value, n);
    return b;
  }
};

inline bool all_bytes_are(const buffer& b, int value) {
  for (std::size_t i = 0; i < b.size(); ++i)
    if (b.data()[i] != std::byte(value)) return false;
  return true;
}

// A completion that is looked at.
struct ending {
  bool over = false;
  error_code ec;
  auto token() {
    return [this](error_code e) { over = true, ec = e; };
  }
};

}  // namespace cokv::test

// Two workers in one process, each with a context, a device of fake_cuda and a table of windows, and a link between them
// over a Unix socket. Driven by hand: the devices go on when a test steps them.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "support/fake_cuda.hpp"

namespace cokv::test {

constexpr std::size_t most_rounds = 200'000;

inline void start_machine(std::uint64_t seed = 0) { fake_cuda::reset({.devices = 2, .seed = seed, .max_delay = 3}); }

inline void check_clean() {
  const auto wrong = fake_cuda::violations();
  CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
  CHECK(fake_cuda::live_allocations() == 0);
  CHECK(fake_cuda::live_streams() == 0);
  CHECK(fake_cuda::live_events() == 0);
}

inline link_options bare() {
  return {.digest = digest_algorithm::none, .credits = 8, .messages = 4, .chunk = 32 << 10, .device_chunk = 32 << 10};
}

// What cuda_ipc:// comes to: all is digested but what devices copy.
inline link_options digested() {
  auto o = bare();
  o.digest = digest_algorithm::xxh3_64;
  o.device_copies = true;
  return o;
}

// What a side has of its process.
struct side {
  explicit side(int ordinal, bool staged = true)
      : gpu(open_device(ctx.get_executor(), "cuda:" + std::to_string(ordinal)).value()), windows(ctx.get_executor()) {
    if (staged) REQUIRE(!windows.stage(gpu, {.chunk = 32 << 10, .count = 2}));
  }
  bool turn() {
    const bool ran = ctx.poll() > 0;
    ctx.restart();
    return (progress::of(ctx.get_executor()).poll() > 0) || ran;
  }
  // The stand-in's device memory is the host's.
  buffer memory(std::size_t n, std::uint64_t seed, memory_kind kind = memory_kind::exportable) {
    auto b = gpu.allocate(n, kind).value();
    for (std::size_t i = 0; i < n; ++i) b.data()[i] = static_cast<std::byte>((i * 31 + seed * 17 + (i >> 8)) & 0xff);
    return b;
  }

  asio::io_context ctx{1};
  device gpu;
  window_table windows;
  peer_link link;
};

inline bool same(const buffer& a, const buffer& b) { return std::memcmp(a.data(), b.data(), b.size()) == 0; }

inline std::string some_place() {
  static int n = 0;
  const auto name = "cokv-ipc-" + std::to_string(::getpid()) + "-" + std::to_string(n++);
  return "shm://" + (std::filesystem::temp_directory_path() / name).string();
}

// Near puts into and gets from what far offers.
struct two_sides {
  explicit two_sides(bool near_staged = true) : far(std::in_place, 0), near(std::in_place, 1, near_staged) {}

  // One round of what is there; whether anything happened.
  bool round(bool devices = true) {
    bool any = false;
    for (auto* s : {&far, &near})
      if (*s) any |= (*s)->turn();
    if (devices) any |= fake_cuda::step();
    return any;
  }
  template <class Until>
  bool drive(Until until, bool devices = true) {
    for (std::size_t i = 0; i < most_rounds && !until(); ++i) round(devices);
    return until();
  }
  // So many rounds in which nothing happens.
  void rest(bool devices = true) {
    for (int quiet = 0; quiet < 20;) quiet = round(devices) ? 0 : quiet + 1;
  }

  void connect(link_options o = bare()) {
    const auto at = some_place();
    auto door = link_listener::listen(far->windows, at, o).value();
    bool made[2] = {};
    door.async_accept([&](error_code ec, peer_link l) { made[0] = !ec, far->link = std::move(l); });
    async_connect(near->windows, at, o, [&](error_code ec, peer_link l) { made[1] = !ec, near->link = std::move(l); });
    REQUIRE(drive([&] { return made[0] && made[1]; }));
  }

  std::optional<side> far, near;
};

// A completion that is looked at.
struct ending {
  bool over = false;
  error_code ec;
  auto token() {
    return [this](error_code e, auto&&...) { over = true, ec = e; };
  }
};

inline void put(two_sides& m, const buffer& what, window_ref to, std::uint64_t at, ending& end) {
  async_flush(what, m.near->link.to(to), at, {}, completion_level::visible, end.token());
}
inline void get(two_sides& m, const buffer& into, window_ref from, std::uint64_t at, ending& end) {
  async_fetch(m.near->link.from(from), at, into, {}, end.token());
}

}  // namespace cokv::test

// What goes wrong while a device packs, on fake_cuda: calls that fail, cancellation, a device that is lost.
#include <cuda_runtime_api.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "cokv/runtime/progress.hpp"
#include "kernel/pack_kernels.hpp"
#include "kvstream/cuda/packing_bed.hpp"
#include "support/fake_cuda.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// Copies of many small pieces are a kernel too.
std::size_t packing_launches() { return fake_cuda::calls("cokv_pack") + fake_cuda::calls("cokv_unpack"); }

constexpr auto tree = digest_algorithm::xxh3_64_tree;

void check_clean() {
  const auto wrong = fake_cuda::violations();
  CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
  CHECK(fake_cuda::live_allocations() == 0);
  CHECK(fake_cuda::live_streams() == 0);
  CHECK(fake_cuda::live_events() == 0);
}

// A slice that is gathered from one memory of a device and scattered to another; the device goes on by steps.
struct packed_trip {
  explicit packed_trip(digest_algorithm how, packing_way way = packing_way::kernel,
                       geometry g = geometry::attention(8, 2, 64, dtype::f16, 8))
      : g(std::move(g)), how(how), way(way) {}

  // False: the device could not be set up.
  bool start() {
    auto made = open_device(ctx.get_executor(), "cuda:0");
    if (!made) return failed(made.error());
    dev = *made;
    auto b = packing_bed::make(dev, 10'000, 2);
    if (!b) return failed(b.error());
    bed.emplace(std::move(*b));
    auto from = bed->host(layout, true), to = bed->host(layout, false);
    if (!from || !to) return failed(from ? to.error() : from.error());
    theirs = *from, ours = *to;
    auto n = bed->on_device(theirs), f = n ? bed->on_device(ours) : n;
    if (!f) return failed(f.error());
    near = *n, far = *f;
    auto w = dev.allocate(what().bytes(), memory_kind::pinned);
    if (!w) return failed(w.error());
    window.emplace(*w, bed->copies);
    through.emplace(bed->through(way));
    bool filled = false;
    bed->copies.async_drain([&](error_code ec) { filled = true, error = ec; });
    return drive([&] { return filled; }) && !error;
  }
  bool failed(error_code ec) {
    error = ec;
    return false;
  }

  slice what() const {
    slice s(g, {0, g.layers()}, {1, 3, 4});
    return s.tokens({2, 20}).heads({0, 1});
  }

  bool round() {
    bool any = ctx.poll_one() > 0;
    ctx.restart();
    any |= progress::of(ctx.get_executor()).poll() > 0;
    return fake_cuda::step() || any;
  }
  bool drive(const std::function<bool()>& until) {
    for (int i = 0; i < 20'000 && !until(); ++i) round();
    if (!until()) ctx.run_for(std::chrono::milliseconds(200)), ctx.restart();  // the heartbeat's turn
    return until();
  }

  // When an operation is over, nothing of what it was given is touched any more.
  void ended(error_code ec, transferred t) {
    over = true;
    error = ec;
    moved = t;
    if (fake_cuda::device_is_lost()) return;
    for (const auto* all : {&near, &far})
      for (const auto& b : *all) touched |= fake_cuda::would_use(b.data(), b.size());
  }
  auto token() {
    over = false;
    return asio::bind_cancellation_slot(stop.slot(), [this](error_code ec, transferred t) { ended(ec, t); });
  }
  void gather() {
    async_gather(kv_view(layout, near), what(), window->to(), 0,
                 {.through = &*through, .begin = after(bed->copies.record()), .digest = how}, token());
  }
  void scatter() {
    async_scatter(window->from(), 0, kv_view(layout, far), what(),
                  {.through = &*through, .digest = moved.digest, .algorithm = how}, token());
  }
  // The stand-in's device memory is the host's.
  void check_scattered() {
    auto model = blank(layout.bytes(0));
    for (auto e : what().extents(layout)) std::memcpy(model.data() + e.offset, theirs[0].data() + e.offset, e.size);
    CHECK(same(far[0], model));
  }

  // Both, to their end; whether they came to it.
  bool run() {
    if (!start()) return true;
    gather();
    if (!drive([&] { return over; })) return false;
    if (error) return true;
    CHECK(moved.digest ==
          (how == tree ? tree_digest_of(window->memory().bytes()) : digest_of(window->memory().bytes())));
    scatter();
    if (!drive([&] { return over; })) return false;
    if (!error) check_scattered();
    return true;
  }

  const geometry g;
  const kv_layout layout = kv_layout::contiguous(g, 1, 48);
  const digest_algorithm how;
  const packing_way way;
  asio::io_context ctx{1};
  device dev;
  std::optional<packing_bed> bed;
  std::vector<buffer> theirs, ours, near, far;
  std::optional<local_window> window;
  std::optional<packing> through;
  asio::cancellation_signal stop;
  bool over = false, touched = false;
  error_code error;
  transferred moved;
};

}  // namespace

TEST_CASE("cuda packing: fake_cuda: a kernel packs and digests where it is wanted, and copies where not") {
  struct expected {
    packing_way way;
    digest_algorithm how;
    std::uint32_t dim;
    bool kernel;
  };
  constexpr auto xxh3 = digest_algorithm::xxh3_64;
  const expected all[] = {{packing_way::automatic, tree, 64, true},    {packing_way::automatic, xxh3, 64, true},
                          {packing_way::automatic, xxh3, 4096, false},  // large extents
                          {packing_way::automatic, tree, 4096, true},  {packing_way::copies, tree, 64, false},
                          {packing_way::kernel, xxh3, 4096, true}};
  for (const auto& e : all) {
    CAPTURE(static_cast<int>(e.way));
    fake_cuda::reset({.seed = 5, .max_delay = 2});
    {
      packed_trip t(e.how, e.way, geometry::attention(e.dim == 64 ? 8 : 1, 2, e.dim, dtype::f16, 8));
      CHECK(t.run());
      CHECK(!t.error);
      CHECK((packing_launches() > 2) == e.kernel);
      CHECK(!t.touched);
    }
    check_clean();
  }
}

TEST_CASE("cuda packing: fake_cuda: memory of another device, and kernels that can't be loaded, are packed by copies") {
  fake_cuda::reset({.devices = 2, .seed = 3});
  {
    packed_trip t(tree);
    REQUIRE(t.start());
    auto away = open_device(t.ctx.get_executor(), "cuda:1").value();
    auto there = away.allocate(t.layout.bytes(0)).value();
    std::memcpy(there.data(), t.theirs[0].data(), there.size());
    t.near = {there};
    t.gather();
    CHECK(t.drive([&] { return t.over; }));
    CHECK(!t.error);
    CHECK(t.moved.digest == tree_digest_of(t.window->memory().bytes()));
    CHECK(packing_launches() == 0);
    t.scatter();
    CHECK(t.drive([&] { return t.over; }));
    CHECK(!t.error);
    CHECK(packing_launches() > 0);
    t.check_scattered();
  }
  check_clean();
  for (const char* call : {"cudaLibraryLoadData", "cudaLibraryGetKernel"}) {
    detail::forget_pack_kernels();
    fake_cuda::reset({.seed = 3});
    fake_cuda::fail_call(call, 1, cudaErrorNoKernelImageForDevice);
    {
      packed_trip t(tree);
      CHECK(t.run());
      CHECK(!t.error);
      CHECK(packing_launches() == 0);
    }
    check_clean();
  }
}

TEST_CASE("cuda packing: fake_cuda: a kernel and a copy that CUDA refuses are the same error") {
  std::vector<error_code> said;
  for (auto [way, call] :
       {std::pair(packing_way::kernel, "cudaLaunchKernel"), {packing_way::copies, "cudaMemcpyAsync"}}) {
    fake_cuda::reset({.seed = 3, .batches = false});
    {
      packed_trip t(tree, way);
      REQUIRE(t.start());
      fake_cuda::fail_call(call, 1, cudaErrorInvalidValue);
      t.gather();
      CHECK(t.drive([&] { return t.over; }));
      said.push_back(t.error);
    }
    check_clean();
  }
  CHECK(said[0].value() == cudaErrorInvalidValue);
  CHECK(said[0] == said[1]);
  CHECK(said[0].message() == said[1].message());
}

TEST_CASE(
    "cuda packing: fake_cuda: whichever call fails, it ends right or with an error, and nothing is written after") {
  for (auto how : {tree, digest_algorithm::xxh3_64}) {
    std::size_t failures = 0;
    for (std::size_t k = 1;; ++k) {
      CAPTURE(k);
      detail::forget_pack_kernels();
      fake_cuda::reset({.seed = k, .max_delay = 2});
      fake_cuda::fail_call("", k, cudaErrorInvalidValue);
      {
        packed_trip t(how);
        REQUIRE(t.run());
        CHECK(!t.touched);
        CHECK((!t.error || t.error.value() == cudaErrorInvalidValue || t.error == errc::wrong_device));
        failures += t.error ? 1 : 0;
      }
      const auto wrong = fake_cuda::violations();
      CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
      if (fake_cuda::calls("") < k) {
        check_clean();
        break;
      }
    }
    CHECK(failures > 20);
  }
}

TEST_CASE("cuda packing: fake_cuda: it may be cancelled at every step: nothing is touched once it has ended") {
  for (bool scatters : {false, true}) {
    int cancelled = 0, done = 0;
    for (int step = 0; done < 3 && step < 3000; ++step) {
      CAPTURE(step);
      fake_cuda::reset({.seed = static_cast<std::uint64_t>(step) + 1, .max_delay = 2});
      {
        packed_trip t(tree);
        REQUIRE(t.start());
        t.gather();
        if (scatters) {
          REQUIRE(t.drive([&] { return t.over; }));
          REQUIRE(!t.error);
          t.scatter();
        }
        for (int i = 0; i < step && !t.over; ++i) t.round();
        t.stop.emit(asio::cancellation_type::total);
        REQUIRE(t.drive([&] { return t.over; }));
        CHECK(!t.touched);
        CHECK((!t.error || t.error == asio::error::operation_aborted));
        if (!t.error && scatters) t.check_scattered();
        (t.error ? cancelled : done) += 1;
      }
      check_clean();
    }
    CHECK(cancelled > 10);
    CHECK(done == 3);
  }
}

TEST_CASE(
    "cuda packing: fake_cuda: whenever the device is lost, it ends with that error, and works again when opened") {
  int lost = 0;
  for (std::size_t k = 1; k < 400; k += 2) {
    CAPTURE(k);
    detail::forget_pack_kernels();
    fake_cuda::reset({.seed = k, .max_delay = 2});
    fake_cuda::lose_after(k, cudaErrorIllegalAddress);
    {
      packed_trip t(tree);
      REQUIRE(t.run());
      CHECK((!t.error || t.error.value() == cudaErrorIllegalAddress || t.error == errc::device_lost ||
             t.error == errc::wrong_device));
      lost += t.error ? 1 : 0;
    }
    CHECK(fake_cuda::violations().empty());
    fake_cuda::lose_after(0, 0);
    packed_trip again(tree);
    REQUIRE(again.run());
    CHECK((!again.error || fake_cuda::device_is_lost()));
  }
  CHECK(lost > 50);
}

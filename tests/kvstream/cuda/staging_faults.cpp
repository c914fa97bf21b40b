// What goes wrong with staged stores on a CUDA device, on fake_cuda: calls that fail, cancellation, a device that is
// lost.
#include <cuda_runtime_api.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "cokv/runtime/progress.hpp"
#include "kvstream/cuda/staging_bed.hpp"
#include "support/fake_cuda.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

void check_lawful() {
  const auto wrong = fake_cuda::violations();
  CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
}

void check_clean() {
  check_lawful();
  CHECK(fake_cuda::live_allocations() == 0);
  CHECK(fake_cuda::live_streams() == 0);
  CHECK(fake_cuda::live_events() == 0);
}

// Two readers, or two writers, of five blocks each and a layer, with one buffer between them; the device goes on by
// steps, and its memory is the host's.
struct staged_trip {
  static constexpr std::uint32_t blocks = 5, layer = 3;

  struct one {
    std::unique_ptr<block_reader> reader;
    std::unique_ptr<block_writer> writer;
    std::vector<buffer> memory;
    error_code error = asio::error::would_block;
    std::size_t good = 0;
    bool over = false, touched = false;
    asio::cancellation_signal stop;
  };

  // False: the device could not be set up.
  bool start(bool writing) {
    writes = writing;
    auto made = open_device(ctx.get_executor(), "cuda:0");
    if (!made) return false;
    dev = *made;
    auto b = staging_bed::make(dev, 2, buffers);
    if (!b) return false;
    bed.emplace(std::move(*b));
    if (!writes && !opened(write_blocks(*bed->staged, bed->ns, 0, blocks))) return false;
    for (std::uint32_t i = 0; i < 2; ++i) {
      auto& o = trips[i];
      auto m = bed->allocate(blocks, contract_layout().segments[layer], memory_kind::device);
      if (!m) return false;
      o.memory = std::move(*m);
      const auto from = contract_segments(100 * i, blocks, layer);
      for (std::uint32_t k = 0; k < blocks; ++k)
        writes ? std::memcpy(o.memory[k].data(), from[k].data(), from[k].size())
               : std::memset(o.memory[k].data(), 0xee, from[k].size());
      if (!opened(open(o, i))) return false;
    }
    return true;
  }
  awaitable<error_code> open(one& o, std::uint32_t i) {
    if (writes) {
      o.writer = co_await bed->staged->async_open_write(bed->ns, contract_layout(), contract_keys(100 * i, blocks));
      for (std::uint32_t l = 0; l < contract_layout().layers(); ++l)
        if (l != layer) co_await o.writer->async_write(l, contract_segments(100 * i, blocks, l));
    } else {
      o.reader = co_await bed->staged->async_open_read(bed->ns, contract_layout(), contract_keys(0, blocks));
    }
    co_return error_code();
  }
  bool opened(awaitable<error_code> what) {
    bool over = false, well = false;
    asio::co_spawn(ctx, std::move(what), [&](std::exception_ptr e, error_code ec) { over = true, well = !e && !ec; });
    return drive([&] { return over; }) && well;
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
  void ended(one& o, error_code ec, std::size_t good) {
    o.over = true;
    o.error = ec;
    o.good = good;
    if (fake_cuda::device_is_lost()) return;
    for (const auto& b : o.memory) o.touched |= fake_cuda::would_use(b.data(), b.size());
  }
  void begin() {
    for (auto& o : trips) {
      if (writes)
        o.writer->async_write(layer, o.memory, asio::bind_cancellation_slot(o.stop.slot(), [this, &o](error_code ec) {
                                ended(o, ec, 0);
                              }));
      else
        o.reader->async_read(
            layer, o.memory,
            asio::bind_cancellation_slot(o.stop.slot(), [this, &o](error_code ec, std::size_t n) { ended(o, ec, n); }));
    }
  }
  bool over() const { return trips[0].over && trips[1].over; }
  bool failed() const { return trips[0].error || trips[1].error; }

  // Of those that ended well.
  void check_right() {
    for (std::uint32_t i = 0; i < 2; ++i) {
      auto& o = trips[i];
      CHECK(!o.touched);
      if (o.error) continue;
      if (writes) {
        CHECK(opened(commit(*o.writer)));
        CHECK(bed->behind->stored_segment(bed->ns, contract_keys(100 * i + 4, 1)[0], layer).data()[19] ==
              contract_byte(100 * i + 4, layer, 19));
        continue;
      }
      CHECK(o.good == blocks);
      const auto want = contract_segments(0, blocks, layer);
      for (std::uint32_t k = 0; k < blocks; ++k)
        CHECK(std::memcmp(o.memory[k].data(), want[k].data(), want[k].size()) == 0);
    }
  }
  static awaitable<error_code> commit(block_writer& writer) {
    auto done = co_await writer.async_commit(as_result);
    co_return done ? error_code() : done.error();
  }

  asio::io_context ctx{1};
  device dev;
  std::size_t buffers = 1;
  bool writes = false;
  std::optional<staging_bed> bed;
  one trips[2];
};

}  // namespace

TEST_CASE("cuda staging: fake_cuda: whichever call fails, it ends right or with an error, and the next one is right") {
  for (bool writes : {false, true}) {
    std::size_t failures = 0;
    for (std::size_t k = 1;; ++k) {
      CAPTURE(k);
      fake_cuda::reset({.seed = k, .max_delay = 2});
      fake_cuda::fail_call("", k, cudaErrorInvalidValue);
      {
        staged_trip t;
        if (t.start(writes)) {
          t.begin();
          REQUIRE(t.drive([&] { return t.over(); }));
          t.check_right();
          for (auto& o : t.trips)
            CHECK((!o.error || o.error.value() == cudaErrorInvalidValue || o.error == errc::wrong_device));
          failures += t.failed();
          if (t.failed()) {  // on another stream
            CHECK(!t.bed->staging.status());
            for (std::uint32_t i = 0; i < 2; ++i) {
              auto& o = t.trips[i];
              o.over = false;
              CHECK(t.opened(t.open(o, i)));
            }
            t.begin();
            REQUIRE(t.drive([&] { return t.over(); }));
            CHECK(!t.failed());
            t.check_right();
          }
        }
      }
      check_lawful();  // a call that fails may be the one that gives something back
      if (fake_cuda::calls("") < k) {
        check_clean();
        break;
      }
    }
    CHECK(failures > 3);
  }
}

TEST_CASE("cuda staging: fake_cuda: it may be cancelled at every step: nothing is touched once it has ended") {
  for (bool writes : {false, true})
    for (std::size_t buffers : {1u, 3u}) {
      int cancelled = 0, done = 0;
      for (int step = 0; done < 3 && step < 3000; ++step) {
        CAPTURE(step);
        fake_cuda::reset({.seed = static_cast<std::uint64_t>(step) + 1, .max_delay = 2});
        {
          staged_trip t;
          t.buffers = buffers;
          REQUIRE(t.start(writes));
          t.begin();
          for (int i = 0; i < step && !t.trips[0].over; ++i) t.round();
          t.trips[0].stop.emit(asio::cancellation_type::terminal);
          REQUIRE(t.drive([&] { return t.over(); }));
          CHECK((!t.trips[0].error || t.trips[0].error == asio::error::operation_aborted));
          CHECK(!t.trips[1].error);  // it is another's
          t.check_right();
          (t.trips[0].error ? cancelled : done) += 1;
        }
        check_clean();
      }
      CHECK(cancelled > 10);
      CHECK(done == 3);
    }
}

TEST_CASE("cuda staging: fake_cuda: whenever the device is lost, all of them end with that error") {
  for (bool writes : {false, true}) {
    int lost = 0;
    for (std::size_t k = 1; k < 400; k += 2) {
      CAPTURE(k);
      fake_cuda::reset({.seed = k, .max_delay = 2});
      fake_cuda::lose_after(k, cudaErrorIllegalAddress);
      {
        staged_trip t;
        if (t.start(writes)) {
          t.begin();
          REQUIRE(t.drive([&] { return t.over(); }));
          for (auto& o : t.trips)
            CHECK((!o.error || o.error.value() == cudaErrorIllegalAddress || o.error == errc::device_lost ||
                   o.error == errc::wrong_device));
          lost += t.failed();
        }
      }
      check_lawful();
      fake_cuda::lose_after(0, 0);
    }
    CHECK(lost > 5);
  }
}

TEST_CASE("cuda staging: fake_cuda: destroyed with everything under way, nothing is used that is gone") {
  for (bool writes : {false, true})
    for (int step = 0; step < 200; step += 3) {
      CAPTURE(step);
      fake_cuda::reset({.seed = static_cast<std::uint64_t>(step) + 1, .max_delay = 2});
      {
        staged_trip t;
        REQUIRE(t.start(writes));
        t.begin();
        for (int i = 0; i < step; ++i) t.round();
      }
      check_clean();
    }
}

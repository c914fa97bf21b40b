// What moves between the devices of two processes, on fake_cuda: right on every seed, without staging where that can be,
// and by staging where it can't.
#include <cuda_runtime_api.h>

#include <random>

#include "ipc/two_sides.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::size_t copies() { return fake_cuda::calls("cudaMemcpyAsync") + fake_cuda::calls("cudaMemcpyBatchAsync"); }

constexpr std::size_t n = 100'000;

// A put and a get of it all, and whether a device made each in one go.
struct round_trip {
  std::size_t put_copies = 0, get_copies = 0;
};
round_trip move_all(two_sides& m, const std::vector<buffer>& pieces, const buffer& data, const buffer& back) {
  auto w = m.far->windows.expose(pieces, window_access::both).value();
  round_trip out;
  ending put_end, get_end, revoked;
  auto before = copies();
  put(m, data, w.ref(), 0, put_end);
  CHECK(m.drive([&] { return put_end.over; }));
  CHECK(!put_end.ec);
  out.put_copies = copies() - before;
  CHECK(w.bytes_put() == data.size());
  std::size_t at = 0;
  for (const auto& p : pieces) {
    CHECK(std::memcmp(p.data(), data.data() + at, p.size()) == 0);
    at += p.size();
  }
  before = copies();
  get(m, back, w.ref(), 0, get_end);
  CHECK(m.drive([&] { return get_end.over; }));
  CHECK(!get_end.ec);
  out.get_copies = copies() - before;
  CHECK(same(back, data));
  CHECK(w.bytes_got() == back.size());
  w.async_revoke(revoked.token());
  CHECK(m.drive([&] { return revoked.over; }));
  return out;
}

constexpr std::size_t chunks = (n + (32 << 10) - 1) / (32 << 10);

}  // namespace

TEST_CASE("cuda_ipc: fake_cuda: puts and gets at once, of any cut, into scattered memory, are what a model says") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    start_machine(seed);
    {
      two_sides m;
      m.connect(seed % 2 ? digested() : bare());
      std::mt19937_64 random(seed);
      auto first = m.far->memory(n, 1), second = m.far->memory(n, 2);
      const std::vector<buffer> pieces{second.slice(1000, 50'000), first.slice(0, 3), first.slice(5000, n - 5000),
                                       second.slice(0, 1000), second.slice(60'000, 40'000)};
      std::vector<std::byte> model;
      for (const auto& p : pieces) model.insert(model.end(), p.data(), p.data() + p.size());
      auto guard = std::vector(first.data(), first.data() + n);
      auto w = m.far->windows.expose(pieces, window_access::both).value();
      const auto host = m.near->gpu.allocate(n, memory_kind::pinned).value();
      std::memset(host.data(), 77, n);
      const auto device = m.near->memory(n, seed + 3, memory_kind::device);
      struct transfer {
        buffer mine;
        std::size_t at;
        bool puts;
        ending end;
      };
      std::vector<std::unique_ptr<transfer>> all;
      // Ranges that don't overlap, half of them put and half of them got.
      for (std::size_t at = 0; at < model.size();) {
        const auto some = std::min<std::size_t>(model.size() - at, 1 + random() % 50'000);
        const auto from = random() % (n - some);
        auto t = std::make_unique<transfer>();
        t->puts = random() % 2;
        t->at = at;
        t->mine =
            !t->puts ? m.near->memory(some, 9, memory_kind::device) : (random() % 2 ? host : device).slice(from, some);
        if (t->puts) std::memcpy(model.data() + at, t->mine.data(), some);
        all.push_back(std::move(t));
        at += some;
      }
      for (auto& t : all) t->puts ? put(m, t->mine, w.ref(), t->at, t->end) : get(m, t->mine, w.ref(), t->at, t->end);
      CHECK(m.drive([&] { return std::ranges::all_of(all, [](auto& t) { return t->end.over; }); }));
      for (auto& t : all) {
        CHECK(!t->end.ec);
        if (!t->puts) CHECK(std::memcmp(t->mine.data(), model.data() + t->at, t->mine.size()) == 0);
      }
      std::size_t at = 0;
      for (const auto& p : pieces) {
        CHECK(std::memcmp(p.data(), model.data() + at, p.size()) == 0);
        at += p.size();
      }
      CHECK(std::memcmp(first.data() + 3, guard.data() + 3, 4997) == 0);
      // Beyond the window, into what may not be written, and of before: refused, and nothing is written.
      auto guarded = m.far->windows.expose({first}, window_access::get).value();
      ending beyond, not_allowed, stale;
      auto lying = w.ref();
      lying.size += n;
      put(m, device, lying, model.size() - 10, beyond);
      put(m, device, guarded.ref(), 0, not_allowed);
      lying = w.ref();
      ++lying.generation;
      put(m, device, lying, 0, stale);
      CHECK(m.drive([&] { return beyond.over && not_allowed.over && stale.over; }));
      CHECK(beyond.ec == errc::out_of_range);
      CHECK(not_allowed.ec == errc::permission_denied);
      CHECK(stale.ec == errc::stale_reference);
      CHECK(!m.near->link.error());
      ending committed, closed;
      m.near->link.to(w.ref()).async_commit(committed.token());
      CHECK(m.drive([&] { return committed.over; }));
      CHECK(!committed.ec);
      CHECK(w.committed());
      put(m, device, w.ref(), 0, closed);
      CHECK(m.drive([&] { return closed.over; }));
      CHECK(closed.ec == errc::closed);
    }
    check_clean();
  }
}

TEST_CASE("cuda_ipc: fake_cuda: one copy moves what lies in device memory on both sides, or in pinned memory on one") {
  for (const auto& how : {bare(), digested()}) {
    start_machine(1);
    {
      two_sides m;
      m.connect(how);
      auto window = m.far->memory(n, 1);
      auto direct = move_all(m, {window}, m.near->memory(n, 2), m.near->memory(n, 3, memory_kind::device));
      CHECK(direct.put_copies == chunks);
      CHECK(direct.get_copies == chunks);
      auto pinned = m.near->gpu.allocate(n, memory_kind::pinned).value();
      auto half = move_all(m, {window}, m.near->memory(n, 4), pinned);
      CHECK(half.get_copies == chunks);
      CHECK(fake_cuda::calls("cudaIpcGetMemHandle") == 1);  // once for all windows in it
    }
    check_clean();
  }
}

TEST_CASE("cuda_ipc: fake_cuda: what was put locally may be written over as soon as the device has copied it") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    start_machine(seed);
    {
      two_sides m;
      m.connect();
      auto window = m.far->memory(n, 1), data = m.near->memory(n, 2);
      const std::vector<std::byte> all(data.data(), data.data() + n);
      auto w = m.far->windows.expose({window}, window_access::put).value();
      auto to = m.near->link.to(w.ref());
      ending put, committed;
      async_flush(data, to, 0, {}, completion_level::local, put.token());
      CHECK(m.drive([&] { return put.over; }));
      CHECK(!put.ec);
      CHECK(!fake_cuda::would_use(data.data(), n));
      std::memset(data.data(), 0xee, n);
      to.async_commit(committed.token());
      CHECK(m.drive([&] { return committed.over; }));
      CHECK(!committed.ec);
      CHECK(std::equal(all.begin(), all.end(), window.data()));
    }
    check_clean();
  }
}

TEST_CASE("cuda_ipc: fake_cuda: what can't be lent, or not so, goes by staging and is as right") {
  enum class what { digests, plain, mixed, refused_export, small, pageable };
  for (auto why : {what::digests, what::plain, what::mixed, what::refused_export, what::small, what::pageable}) {
    CAPTURE(static_cast<int>(why));
    start_machine(static_cast<std::uint64_t>(why) + 1);
    {
      two_sides m;
      auto o = bare();
      if (why == what::digests) o.digest = digest_algorithm::xxh3_64;
      m.connect(o);
      const auto size = why == what::small ? std::size_t{60'000} : n;
      auto window = m.far->memory(size, 1, why == what::plain ? memory_kind::device : memory_kind::exportable);
      std::vector<buffer> pieces{window};
      if (why == what::mixed) pieces = {window.slice(0, n - 10), buffer::host(10)};
      if (why == what::refused_export) fake_cuda::fail_call("cudaIpcGetMemHandle", 1, cudaErrorNotSupported);
      auto data = m.near->memory(size, 2), back = m.near->memory(size, 3);
      if (why == what::pageable) {
        data = buffer::host(n), back = buffer::host(n);
        std::memset(data.data(), 5, n);
      }
      const auto went = move_all(m, pieces, data, back);

      if (why != what::pageable) CHECK(went.put_copies > (size + (32 << 10) - 1) / (32 << 10));
      // Asked for once more to be got from, which may be.
      const std::size_t exports = why == what::refused_export ? 2 : why == what::pageable ? 1 : 0;
      CHECK(fake_cuda::calls("cudaIpcGetMemHandle") == exports);
      if (why == what::refused_export) (void)move_all(m, pieces, data, back);  // another window may be lent
      CHECK(!m.near->link.error());
    }
    check_clean();
  }
  start_machine();
  {
    two_sides m(false);  // near has no device for its links
    m.connect();
    auto data = buffer::host(n), back = buffer::host(n);
    std::memset(data.data(), 5, n);
    (void)move_all(m, {m.far->memory(n, 1)}, data, back);
  }
  check_clean();
}

TEST_CASE("cuda_ipc: fake_cuda: a window of the host's memory is asked for anew when its bytes come from the host") {
  start_machine(3);
  {
    two_sides m;
    m.connect();
    auto window = allocate_shared(n).value();
    (void)move_all(m, {window}, m.near->memory(n, 2), m.near->memory(n, 3));
    auto w = m.far->windows.expose({window}, window_access::both).value();
    auto data = buffer::host(n);
    std::memset(data.data(), 6, n);
    for (auto& from : {m.near->memory(n, 2), data, m.near->memory(n, 4)}) {
      ending end;
      put(m, from, w.ref(), 0, end);
      CHECK(m.drive([&] { return end.over; }));
      CHECK(!end.ec);
      CHECK(same(window, from));
    }
  }
  check_clean();
}

// The moving kernel against what it was to move: on fake_cuda in every build, and unchanged on a device (label gpu).
#include <random>
#include <vector>

#include "kernel/pack_kernels.hpp"
#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("cuda moving: pieces of any size and place come where they are to be, and nothing else is written") {
  on_cuda([](cuda_machine& m) {
    std::random_device seeds;
    const auto seed = seeds();
    CAPTURE(seed);
    std::mt19937 random(seed);
    auto s = m.device.make_stream().value();
    for (std::size_t most : {7u, 300u, 5000u, 200'000u}) {
      constexpr std::size_t room = 3 << 20;
      const auto from = m.device.allocate(room).value(), to = m.device.allocate(room, memory_kind::exportable).value();
      auto near = m.pinned(room, 0), back = m.pinned(room, 0), want = m.pinned(room, 0x5a);
      for (std::size_t i = 0; i < room; ++i) near.data()[i] = static_cast<std::byte>(random());
      std::vector<copy_op> copies;
      for (std::size_t at = 0, n = 0; at + most < room && copies.size() < 3000; at += n + random() % 9) {
        n = 1 + random() % most;
        const auto source = random() % 2 ? at : random() % (room - n);  // in step, or wherever
        if (random() % 4 == 0) n = n / 16 * 16;
        copies.push_back({to.slice(at, n), from.slice(source, n)});
        std::copy_n(near.data() + source, n, want.data() + at);
      }
      REQUIRE(!s.copy(from, near));
      REQUIRE(!s.copy(to, m.pinned(room, 0x5a)));
      bool reached = false;
      const buffer memory[] = {from, to};
      REQUIRE(!detail::move_by_kernel(s, copies, memory, reached));
      if (!reached) {
        MESSAGE("skipped: no kernels for this device");
        return;
      }
      REQUIRE(!s.copy(back, to));
      REQUIRE(!m.wait(s.record()));
      CHECK(std::ranges::equal(back.bytes(), want.bytes()));
    }
  });
}

TEST_CASE("cuda moving: what the device doesn't reach is left to others") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    const auto far = m.device.allocate(4096).value(), near = m.pinned(4096, 1);
    bool reached = true;
    const buffer memory[] = {far, near};
    CHECK(!detail::move_by_kernel(s, std::vector<copy_op>{{far, near}}, memory, reached));
    CHECK(!reached);
    CHECK(!m.wait(s.record()));
  });
}

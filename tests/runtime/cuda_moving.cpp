// Batches of many small copies: on fake_cuda in every build, and unchanged on a device (label gpu).
#include <random>
#include <vector>

#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::size_t room = 1 << 20;

// Pieces of at most so many bytes, in step or from wherever, out of `from` into `to`; what that comes to in `want`.
std::vector<copy_op> pieces(std::mt19937& random, std::size_t most, const buffer& from, const buffer& to,
                            const buffer& source, const buffer& want) {
  std::vector<copy_op> out;
  for (std::size_t at = 0, n = 0; at + most < room && out.size() < 3000; at += n + random() % 9) {
    n = 1 + random() % most;
    if (random() % 4 == 0) n = n / 16 * 16;
    const auto first = random() % 2 ? at : random() % (room - n);
    out.push_back({to.slice(at, n), from.slice(first, n)});
    std::copy_n(source.data() + first, n, want.data() + at);
  }
  return out;
}

}  // namespace

TEST_CASE("cuda: many small copies, of any size and place, come where they are to be, and nothing else is written") {
  on_cuda([](cuda_machine& m) {
    std::random_device seeds;
    const auto seed = seeds();
    CAPTURE(seed);
    std::mt19937 random(seed);
    auto s = m.device.make_stream().value();
    const auto there = m.device.allocate(room).value(),
               other = m.device.allocate(room, memory_kind::exportable).value();
    auto source = m.pinned(room, 0), back = m.pinned(room, 0);
    for (std::size_t i = 0; i < room; ++i) source.data()[i] = static_cast<std::byte>(random());
    const auto shared = m.device.allocate(room, memory_kind::shared).value();
    for (std::size_t most : {7u, 5000u, 60'000u}) {
      CAPTURE(most);
      REQUIRE(!s.copy(there, source));
      {  // from one place of the device to another
        auto want = m.pinned(room, 0x5a);
        REQUIRE(!s.copy(other, want));
        REQUIRE(!m.wait(s.record()));
        REQUIRE(!s.copy_batch(pieces(random, most, there, other, source, want)));
        REQUIRE(!s.copy(back, other));
        REQUIRE(!m.wait(s.record()));
        CHECK(std::ranges::equal(back.bytes(), want.bytes()));
      }
      for (const auto& far : {m.pinned(room, 0x5a), shared}) {  // to and from the host
        auto want = m.pinned(room, 0x5a);
        std::ranges::fill(far.bytes(), std::byte{0x5a});
        REQUIRE(!s.copy_batch(pieces(random, most, there, far, source, want)));
        REQUIRE(!m.wait(s.record()));
        CHECK(std::ranges::equal(far.bytes(), want.bytes()));
        auto up = m.pinned(room, 0x11);
        REQUIRE(!s.copy(other, up));
        REQUIRE(!m.wait(s.record()));
        REQUIRE(!s.copy_batch(pieces(random, most, far, other, far, up)));
        REQUIRE(!s.copy(back, other));
        REQUIRE(!m.wait(s.record()));
        CHECK(std::ranges::equal(back.bytes(), up.bytes()));
      }
    }
  });
}

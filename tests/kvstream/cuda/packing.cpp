// Packing what lies on a CUDA device, by its copies and by its kernel: on fake_cuda in every build, and unchanged on a
// device (label gpu).
#include "kvstream/cuda/packing_bed.hpp"
#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::uint64_t digest_by(digest_algorithm how, std::span<const std::byte> bytes) {
  if (how == digest_algorithm::none) return 0;
  return how == digest_algorithm::xxh3_64 ? digest_of(bytes) : tree_digest_of(bytes);
}

constexpr digest_algorithm digests[] = {digest_algorithm::none, digest_algorithm::xxh3_64,
                                        digest_algorithm::xxh3_64_tree};
constexpr packing_way ways[] = {packing_way::automatic, packing_way::copies, packing_way::kernel};

void run_on_loop(cuda_machine& m, awaitable<void> body) {
  bool over = false;
  asio::co_spawn(m.context, std::move(body), [&](std::exception_ptr failed) {
    CHECK(!failed);
    over = true;
  });
  m.run();
  CHECK(over);
}

awaitable<void> round_trip(device dev, std::uint32_t seed) {
  CAPTURE(seed);
  shapes random(seed);
  static constexpr std::size_t rooms[] = {10'000, 21'000, 64 << 10, 200'000, 300};
  auto bed = packing_bed::make(dev, rooms[random.below(5)]).value();
  const bool keys_and_values = random.below(2);
  const auto g = random.make(keys_and_values);
  const auto layouts = random.layouts(g, 16, keys_and_values);
  const auto &from = layouts[random.below(layouts.size())], &to = layouts[random.below(layouts.size())];
  const auto n = 1 + random.below(12);
  const auto what = narrowing::of(random, g, n);
  const auto from_table = random.table(from.layout, n), to_table = random.table(to.layout, n);
  const auto source = what.select(g, from_table), target = what.select(g, to_table);
  CAPTURE(from.name);
  CAPTURE(to.name);

  auto theirs = bed.host(from.layout, true).value(), ours = bed.host(to.layout, false).value();
  auto expected = bed.host(to.layout, false).value();
  const auto at = by_definition(g, from, what, from_table), into = by_definition(g, to, what, to_table);
  std::vector<std::byte> packed;
  for (std::size_t i = 0; i < at.size(); ++i) {
    packed.push_back(theirs[at[i].buffer].bytes()[at[i].offset]);
    expected[into[i].buffer].bytes()[into[i].offset] = packed.back();
  }
  auto near = bed.on_device(theirs).value(), far = bed.on_device(ours).value();
  const auto filled = bed.copies.record();
  const auto how = digests[random.below(3)];
  const auto packs = bed.through(ways[random.below(3)]), unpacks = bed.through(ways[random.below(3)]);

  local_window window(dev.allocate(at.size() + 20, memory_kind::pinned).value(), bed.copies);
  std::ranges::fill(window.memory().bytes(), std::byte{0xdd});
  auto sent = co_await async_gather(kv_view(from.layout, near), source, window.to(), 10,
                                    {.through = &packs, .begin = after(filled), .digest = how});
  CHECK(sent.bytes == packed.size());
  CHECK(sent.digest == digest_by(how, packed));
  CHECK(same(window.memory().slice(10, packed.size()).bytes(), packed));
  CHECK(window.memory().bytes()[9] == std::byte{0xdd});
  CHECK(window.memory().bytes()[10 + packed.size()] == std::byte{0xdd});

  scatter_options back{.through = &unpacks, .algorithm = how};
  if (how != digest_algorithm::none) back.digest = sent.digest;
  auto got = co_await async_scatter(window.from(), 10, kv_view(to.layout, far), target, back);
  CHECK(got.digest == sent.digest);
  CHECK(!co_await bed.fetch(ours, far));
  for (std::size_t b = 0; b < ours.size(); ++b) CHECK(same(ours[b], expected[b]));

  if (packed.empty() || how == digest_algorithm::none) co_return;
  window.memory().bytes()[10 + random.below(packed.size())] ^= std::byte(1 << random.below(8));
  auto damaged = co_await async_scatter(window.from(), 10, kv_view(to.layout, far), target, back, as_result);
  CHECK(damaged.error() == errc::digest_mismatch);
}

}  // namespace

TEST_CASE("cuda packing: what is gathered from one layout is right in another, with the digest that a CPU makes") {
  std::uint32_t seed = 0;
  on_cuda([&](cuda_machine& m) {
    for (int i = 0; i < 8; ++i) run_on_loop(m, round_trip(m.device, ++seed));
  });
}

TEST_CASE("cuda packing: what a device gathers a CPU scatters, and the other way") {
  on_cuda([](cuda_machine& m) {
    run_on_loop(m, [](cuda_machine& m) -> awaitable<void> {
      const auto g = geometry::attention(3, 4, 32, dtype::f16, 8);
      auto bed = packing_bed::make(m.device, 20'000).value();
      auto cpu = open_device(m.context.get_executor(), "cpu").value();
      auto host = packing_bed::make(cpu, 7'000).value();
      const auto layout = kv_layout::paged(g, 6);
      const auto theirs = bed.host(layout, true).value(), ours = bed.host(layout, false).value();
      const auto near = bed.on_device(theirs).value();
      slice what(g, {0, 3}, {5, 0, 3});
      what.tokens({3, 18}).heads({1, 2});
      local_window window(m.device.allocate(what.bytes(), memory_kind::pinned).value(), bed.copies);
      local_window on_the_host(window.memory(), host.copies);
      const auto through = bed.through(packing_way::automatic);
      const auto on_host = host.through(packing_way::automatic);
      constexpr auto tree = digest_algorithm::xxh3_64_tree;

      const auto filled = bed.copies.record();
      auto sent = co_await async_gather(kv_view(layout, near), what, window.to(), 0,
                                        {.through = &through, .begin = after(filled), .digest = tree});
      co_await async_scatter(on_the_host.from(), 0, kv_view(layout, ours), what,
                             {.through = &on_host, .digest = sent.digest, .algorithm = tree});
      auto back = co_await async_gather(kv_view(layout, ours), what, on_the_host.to(), 0,
                                        {.through = &on_host, .digest = tree});
      CHECK(back.digest == sent.digest);
      const auto clean = bed.host(layout, false).value(), seen = bed.host(layout, false).value();
      const auto far = bed.on_device(clean).value();
      CHECK(!co_await bed.fetch(seen, far));
      co_await async_scatter(window.from(), 0, kv_view(layout, far), what,
                             {.through = &through, .digest = sent.digest, .algorithm = tree});
      CHECK(!co_await bed.fetch(seen, far));
      CHECK(same(seen[0], ours[0]));
      const auto none = digest_algorithm::none;
      auto refused = co_await async_scatter(window.from(), 0, kv_view(layout, far), what,
                                            {.through = &through, .digest = 1, .algorithm = none}, as_result);
      CHECK(refused.error() == errc::invalid_argument);
    }(m));
  });
}

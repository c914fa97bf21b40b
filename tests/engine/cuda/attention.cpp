// Attention on a CUDA device against softmax in double precision: on a stand-in in every build, and unchanged on a device
// (label gpu).
#include <cmath>

#include "engine/cuda/library.hpp"
#include "engine/kernel/paged_kv.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

namespace {

struct shape {
  std::uint32_t kv_heads, group, dim, block_tokens;
};

// Sequences of several lengths in one pool, each with its KV, all else NaN.
struct some_sequences {
  some_sequences(dtype type, shape of, std::span<const std::pair<std::uint32_t, std::uint32_t>> lengths,
                 std::mt19937& random)
      : type(type), of(of) {
    std::uint32_t row = 0, table = 0;
    std::size_t base = 0;
    for (auto [start, count] : lengths) {
      auto& one = each.emplace_back(type, of.kv_heads, of.dim, of.block_tokens, start + count, random());
      one.write(start + count);
      list.push_back({start, count, row, table});
      for (auto b : one.blocks) blocks.push_back(b + static_cast<std::uint32_t>(base / one.kv.block_bytes));
      memory.insert(memory.end(), one.memory.begin(), one.memory.end());
      base = memory.size();
      row += count;
      table = static_cast<std::uint32_t>(blocks.size());
    }
    rows = row;
    q = random_floats(std::size_t{rows} * heads() * of.dim, random(), 2);
    if (type == dtype::bf16)
      for (auto& v : q) v = to_float(to_bf16(v));
  }
  std::uint32_t heads() const { return of.kv_heads * of.group; }

  dtype type;
  shape of;
  std::vector<paged_sequence> each;
  std::vector<gpu::attention_sequence> list;
  std::vector<std::uint32_t> blocks;
  std::vector<std::byte> memory;
  std::vector<float> q;
  std::uint32_t rows;
};

void compare(cuda_machine& m, stream s, const device_kernels& kernels, const some_sequences& all,
             const std::vector<float>& slopes) {
  const auto dim = all.of.dim;
  const auto plan = plan_attention(all.type, all.heads(), all.of.kv_heads, dim, all.list);
  const auto pool = on_device(m, s, all.memory), tables = on_device(m, s, all.blocks),
             q = all.type == dtype::f32 ? on_device(m, s, all.q) : on_device(m, s, rounded(all.q)),
             list = on_device(m, s, all.list), far_slopes = on_device(m, s, slopes),
             out = on_device(m, s, std::vector<std::uint8_t>(all.q.size() * size_of(all.type), 0xff));
  const auto scratch = plan.slots;
  const auto tops = on_device(m, s, poisoned(scratch)), sums = on_device(m, s, poisoned(scratch)),
             results = on_device(m, s, poisoned(scratch * dim));
  gpu::attention_job job{};
  job.q = q.data();
  job.out = out.data();
  job.kv = {
      pool.data(), all.each.front().kv.block_bytes, at<std::uint32_t>(tables), all.of.block_tokens, all.of.kv_heads,
      dim};
  job.sequences = at<gpu::attention_sequence>(list);
  job.slopes = slopes.empty() ? nullptr : at<float>(far_slopes);
  job.heads = all.heads();
  job.parts = plan.parts;
  job.tops = at<float>(tops), job.sums = at<float>(sums), job.results = at<float>(results);
  std::vector<buffer> lists;
  auto run = [&](const std::vector<gpu::attention_tile>& tiles, auto call) {
    lists.push_back(on_device(m, s, tiles));
    auto with = job;
    with.tiles = at<gpu::attention_tile>(lists.back());
    with.tile_count = static_cast<std::uint32_t>(tiles.size());
    REQUIRE(!s.launch_native("attention", {}, [&](void* native) { return call(with, native); }));
  };
  run(plan.prompt, [&](auto& j, void* native) { return kernels.prompt_attention(j, native); });
  run(plan.decode, [&](auto& j, void* native) { return kernels.decode_attention(j, native); });
  run(plan.plain, [&](auto& j, void* native) { return kernels.plain_attention(all.type, j, native); });

  std::vector<float> got;
  if (all.type == dtype::f32)
    got = back_from<float>(m, s, out);
  else
    for (auto h : back_from<bf16>(m, s, out)) got.push_back(to_float(h));
  double worst = 0;
  for (std::size_t i = 0; i < all.list.size(); ++i)
    for (std::uint32_t t = 0; t < all.list[i].count; ++t) {
      const auto width = std::size_t{all.heads()} * dim, begin = (all.list[i].row + t) * width;
      const auto want = all.each[i].exact(all.q.data() + begin, all.list[i].start + t, all.heads(), slopes);
      for (std::size_t d = 0; d < width; ++d) {
        const double apart = std::abs(want[d] - double(got[begin + d]));
        worst = std::isnan(apart) ? INFINITY : std::max(worst, apart);
      }
    }
  // Values are up to 1; weights and results are rounded to bf16.
  CHECK(worst < (all.type == dtype::f32 ? 1e-5 : 1.2e-2));
}

}  // namespace

TEST_CASE("cuda attention: prompts, chunks and single tokens over paged KV equal softmax in double precision") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    const std::uint32_t dims[] = {8, 32, 40, 64, 80, 96, 128}, groups[] = {1, 2, 3, 7, 8, 17};
    const shape of{1 + below(2), groups[below(6)], dims[below(7)], 1 + below(33)};
    CAPTURE(of.kv_heads);
    CAPTURE(of.group);
    CAPTURE(of.dim);
    CAPTURE(of.block_tokens);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> lengths{
        {0, 1 + below(140)}, {below(300), 1}, {gpu::least_part - 5, 9}};  // the last one's tokens see one part or two
    for (auto n = below(3); n > 0; --n) lengths.emplace_back(below(200), 1 + below(random() % 2 ? 90 : 3));
    std::shuffle(lengths.begin(), lengths.end(), random);
    const some_sequences all(dtype::bf16, of, lengths, random);
    std::vector<float> slopes;
    if (random() % 2)
      for (auto v : random_floats(all.heads(), random())) slopes.push_back(std::abs(v));
    compare(m, s, kernels, all, slopes);
  });
}

TEST_CASE("cuda attention: heads and types that tensor cores don't take") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    const auto type = random() % 2 ? dtype::f32 : dtype::bf16;
    const std::uint32_t odd[] = {2, 20, 34, 130, 256, 300}, any[] = {16, 64, 80, 256};
    const shape of{1 + below(2), 1 + below(3), type == dtype::f32 ? any[below(4)] : odd[below(6)], 1 + below(20)};
    CAPTURE(of.dim);
    const std::pair<std::uint32_t, std::uint32_t> lengths[] = {{0, 1 + below(20)}, {below(200), 1}};
    const some_sequences all(type, of, lengths, random);
    std::vector<float> slopes;
    if (random() % 2)
      for (auto v : random_floats(all.heads(), random())) slopes.push_back(std::abs(v));
    compare(m, s, kernels, all, slopes);
  });
}

TEST_CASE("cuda attention: a long sequence in parts that its own length cuts, whoever is beside it") {
  CHECK(gpu::part_keys(1) == gpu::least_part);
  CHECK(gpu::part_keys(gpu::least_part * gpu::most_parts) == gpu::least_part);
  CHECK(gpu::part_keys(gpu::least_part * gpu::most_parts + 1) == 2 * gpu::least_part);
  for (std::uint32_t n : {1u, 127u, 128u, 129u, 8192u, 8193u, 131072u, 1000000u}) {
    CHECK(gpu::parts_of(n) <= gpu::most_parts);
    CHECK(gpu::parts_of(n) * gpu::part_keys(n) >= n);
  }
  // Rows of one sequence are in lists of their kernel, all of them, once.
  const gpu::attention_sequence sequences[] = {{0, 100, 0, 0}, {700, 1, 100, 9}, {50, 9, 101, 20}};
  const auto plan = plan_attention(dtype::bf16, 14, 2, 64, sequences);
  CHECK(plan.prompt.size() == (100 * 7 + 63) / 64);
  CHECK(plan.decode.size() == 1 + (9 * 7 + 15) / 16);
  CHECK(plan.plain.empty());
  CHECK(plan.parts == gpu::parts_of(701));
  // As many slots as there are parts of rows: a long sequence costs its own alone.
  CHECK(plan.slots == 2 * (gpu::parts_of(701) * 7 + gpu::parts_of(59) * 9 * 7));
  CHECK(plan.decode[1].slots == 2 * gpu::parts_of(701) * 7);
  CHECK(plan_attention(dtype::f32, 14, 2, 64, sequences).plain.size() == 110);
}

// The kernels that move a row at a time against their twins on the CPU: on a stand-in in every build, and unchanged on a
// device (label gpu).
#include <cmath>

#include "engine/cuda/library.hpp"
#include "engine/kernel/random.hpp"
#include "kernel/cpu/activation.hpp"
#include "kernel/cpu/attention.hpp"
#include "kernel/cpu/norm.hpp"
#include "kernel/cpu/rows.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

namespace {

constexpr dtype types[] = {dtype::f32, dtype::bf16};

std::uint32_t below(std::mt19937& random, std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); }
std::uint32_t even(std::mt19937& random, std::uint32_t most) { return 2 * (1 + below(random, most / 2)); }

// What is on the device as floats.
std::vector<float> floats_from(cuda_machine& m, stream s, const buffer& far, dtype type) {
  if (type == dtype::f32) return back_from<float>(m, s, far);
  std::vector<float> out;
  for (auto h : back_from<bf16>(m, s, far)) out.push_back(to_float(h));
  return out;
}

// Poison, in a buffer of its own.
buffer unwritten(cuda_machine& m, stream s, std::size_t bytes) {
  return on_device(m, s, std::vector<std::uint8_t>(std::max<std::size_t>(bytes, 1), 0xff));
}

// The same but for the last bits: of floats, or of what they are rounded to.
void check_near(const std::vector<float>& got, const std::vector<float>& want, dtype type, float slack = 2e-6f) {
  REQUIRE(got.size() == want.size());
  if (type == dtype::bf16) slack = std::max(slack, 0x1p-7f);
  float largest = 1e-3f, worst = 0;
  for (auto w : want) largest = std::max(largest, std::abs(w));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float scale = type == dtype::bf16 ? std::max(std::abs(want[i]), 1e-2f * largest) : largest;
    const float apart = std::abs(got[i] - want[i]) / scale;
    worst = std::isnan(apart) ? INFINITY : std::max(worst, apart);
  }
  CHECK(worst <= slack);
}

template <class F>
void launch(stream s, F call) {
  REQUIRE(!s.launch_native("kernel", {}, [&](void* native) { return call(native); }));
}

// Of a CPU kernel's output in `type`.
std::vector<float> floats_of(const std::vector<std::byte>& from, dtype type) {
  std::vector<float> out(from.size() / size_of(type));
  for (std::size_t i = 0; i < out.size(); ++i)
    if (type == dtype::f32)
      std::memcpy(&out[i], from.data() + i * 4, 4);
    else {
      bf16 h;
      std::memcpy(&h, from.data() + i * 2, 2);
      out[i] = to_float(h);
    }
  return out;
}

}  // namespace

TEST_CASE("cuda kernels: rows of a table, and rows added") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    for (auto table : types)
      for (auto out : types) {
        const auto rows = 1 + below(random, 5), n = even(random, 700), entries = 1 + below(random, 20);
        const auto first = below(random, entries);
        const auto values = random_floats(entries * n, random()), before = random_floats(rows * n, random());
        std::vector<std::uint32_t> index;
        for (std::uint32_t r = 0; r < rows; ++r) index.push_back(below(random, entries - first));
        const auto far = table == dtype::f32 ? on_device(m, s, values) : on_device(m, s, rounded(values));
        const auto list = on_device(m, s, index);
        for (bool add : {false, true}) {
          const auto to = !add                ? unwritten(m, s, rows * n * size_of(out))
                          : out == dtype::f32 ? on_device(m, s, before)
                                              : on_device(m, s, rounded(before));
          launch(s, [&](void* native) {
            return kernels.embed(table, out, {far.data(), at<std::uint32_t>(list), to.data(), first, rows, n, add},
                                 native);
          });
          std::vector<float> want;
          for (std::uint32_t r = 0; r < rows; ++r)
            for (std::uint32_t i = 0; i < n; ++i) {
              auto v = values[(index[r] + first) * n + i], old = before[r * n + i];
              if (table == dtype::bf16) v = to_float(to_bf16(v));
              if (out == dtype::bf16) old = to_float(to_bf16(old));
              v = add ? v + old : v;
              want.push_back(out == dtype::bf16 ? to_float(to_bf16(v)) : v);
            }
          CHECK(floats_from(m, s, to, out) == want);
        }
      }
  });
}

TEST_CASE("cuda kernels: norms, with the bias of the product before, beside the row and in its place") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    for (auto kind : {gpu::norm_kind::none, gpu::norm_kind::rms, gpu::norm_kind::layer})
      for (auto out : types) {
        const auto rows = 1 + below(random, 4), n = even(random, 1400);
        const bool biased = random() % 2, in_place = out == dtype::f32 && random() % 2;
        CAPTURE(n);
        CAPTURE(static_cast<int>(kind));
        auto x = random_floats(rows * n, random(), 3);
        const auto add = random_floats(n, random()), weight = random_floats(n, random()),
                   bias = random_floats(n, random());
        const auto far_x = on_device(m, s, x), far_add = on_device(m, s, add), far_weight = on_device(m, s, weight),
                   far_bias = on_device(m, s, bias);
        const auto to = in_place ? far_x : unwritten(m, s, rows * n * size_of(out));
        launch(s, [&](void* native) {
          return kernels.norm(out,
                              {at<float>(far_x), biased ? at<float>(far_add) : nullptr, at<float>(far_weight),
                               at<float>(far_bias), to.data(), kind, 1e-5f, rows, n},
                              native);
        });
        if (biased) add_bias(x.data(), add.data(), rows, n);
        std::vector<std::byte> want(rows * n * size_of(out));
        if (kind == gpu::norm_kind::none)
          convert(x.data(), want.data(), out, rows * n);
        else if (kind == gpu::norm_kind::rms)
          rms_norm(x.data(), weight.data(), 1e-5f, want.data(), out, rows, n);
        else
          layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, want.data(), out, rows, n);
        check_near(floats_from(m, s, to, out), floats_of(want, out), out, 1e-5f);
        if (!in_place) CHECK(back_from<float>(m, s, far_x) == x);
      }
  });
}

TEST_CASE("cuda kernels: queries and keys turned, keys and values in their blocks, and nothing else written") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    for (auto type : types) {
      const auto kv_heads = 1 + below(random, 3), heads = kv_heads * (1 + below(random, 3)), dim = even(random, 80);
      const auto half = below(random, dim / 2 + 1), block_tokens = 1 + below(random, 9), rows = 1 + below(random, 7);
      const bool neighbours = random() % 2, biased = random() % 2, some = random() % 2;
      const auto width = (heads + 2 * kv_heads) * dim;
      CAPTURE(dim);
      CAPTURE(half);
      // Two sequences, of which the second has the last row.
      const std::vector<std::uint32_t> blocks{5, 2, 7, 0, 3, 6};
      std::vector<std::uint32_t> position, table, kept;
      std::uint32_t q_rows = 0;
      for (std::uint32_t r = 0; r < rows; ++r) {
        table.push_back(r + 1 == rows ? 4 : 0);
        position.push_back(r + 1 == rows ? below(random, 2 * block_tokens) : below(random, 4 * block_tokens));
        for (std::uint32_t o = 0; o < r; ++o)  // no position twice
          if (table[o] == table[r] && position[o] == position[r])
            position[r] = (position[r] + 1) % (4 * block_tokens), o = ~0u;
        kept.push_back(some && random() % 2 ? gpu::not_kept : q_rows++);
        if (4 * block_tokens < rows) return;
      }
      auto qkv = random_floats(rows * width, random());
      const auto bias = random_floats(width, random());
      std::vector<float> frequencies;
      for (std::uint32_t i = 0; i < half; ++i) frequencies.push_back(std::pow(10000.0f, -float(i) / float(half)));

      const std::size_t block_bytes = std::size_t{2} * kv_heads * dim * block_tokens * size_of(type);
      const auto pool = unwritten(m, s, 8 * block_bytes), q = unwritten(m, s, q_rows * heads * dim * size_of(type)),
                 turns = unwritten(m, s, std::max(1u, rows * half) * sizeof(gpu::float_pair));
      const auto far_qkv = on_device(m, s, qkv), far_bias = on_device(m, s, bias),
                 far_frequencies = on_device(m, s, frequencies), far_position = on_device(m, s, position),
                 far_table = on_device(m, s, table), far_kept = on_device(m, s, kept),
                 far_blocks = on_device(m, s, blocks);
      const auto* places = at<std::uint32_t>(far_position);
      if (half > 0)
        launch(s, [&](void* native) {
          return kernels.angles({at<float>(far_frequencies), places, at<gpu::float_pair>(turns), rows, half}, native);
        });
      launch(s, [&](void* native) {
        const gpu::paged_kv kv{pool.data(), block_bytes, at<std::uint32_t>(far_blocks), block_tokens, kv_heads, dim};
        return kernels.rotary(type,
                              {at<float>(far_qkv), biased ? at<float>(far_bias) : nullptr, places,
                               at<std::uint32_t>(far_table), some ? at<std::uint32_t>(far_kept) : nullptr,
                               at<gpu::float_pair>(turns), q.data(), kv, rows, heads, half, neighbours},
                              native);
      });

      std::vector<std::byte> want_pool(8 * block_bytes, std::byte{0xff});
      std::vector<std::byte> want_q(std::max<std::size_t>(q_rows * heads * dim * size_of(type), 1), std::byte{0xff});
      const layer_kv kv{want_pool.data(), block_bytes, type, kv_heads, dim, block_tokens};
      if (biased) add_bias(qkv.data(), bias.data(), rows, width);
      std::vector<float> cosines(half), sines(half);
      for (std::uint32_t r = 0; r < rows; ++r) {
        auto* row = qkv.data() + r * width;
        rotary_angles(frequencies, position[r], cosines.data(), sines.data());
        for (std::uint32_t h = 0; h < heads + kv_heads; ++h)
          (neighbours ? rotate_pairs : rotate_half)(row + h * dim, cosines.data(), sines.data(), half);
        if (kept[r] != gpu::not_kept)
          convert(row, want_q.data() + kept[r] * heads * dim * size_of(type), type, heads * dim);
        for (std::uint32_t h = 0; h < kv_heads; ++h)
          for (std::uint32_t plane : {0u, 1u})
            convert(row + (heads + plane * kv_heads + h) * dim, kv.at(blocks.data() + table[r], position[r], h, plane),
                    type, dim);
      }
      const auto got_pool = floats_from(m, s, pool, type), pool_floats = floats_of(want_pool, type);
      std::vector<float> got, want;
      bool untouched = true;
      for (std::size_t i = 0; i < got_pool.size(); ++i)
        if (std::isnan(pool_floats[i]))
          untouched &= std::isnan(got_pool[i]);
        else
          got.push_back(got_pool[i]), want.push_back(pool_floats[i]);
      CHECK(untouched);
      check_near(got, want, type, 1e-5f);
      if (q_rows > 0) check_near(floats_from(m, s, q, type), floats_of(want_q, type), type, 1e-5f);
    }
  });
}

TEST_CASE("cuda kernels: activations, with and without a gate and a bias") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    const std::pair<gpu::device_activation, activation> acts[] = {
        {gpu::device_activation::silu, activation::silu},
        {gpu::device_activation::relu, activation::relu},
        {gpu::device_activation::gelu, activation::gelu},
        {gpu::device_activation::gelu_tanh, activation::gelu_tanh}};
    for (auto [on_gpu, on_cpu] : acts)
      for (auto out : types) {
        const bool gated = on_cpu == activation::silu && random() % 2, biased = random() % 2;
        const auto rows = 1 + below(random, 3), n = even(random, 3000), width = gated ? 2 * n : n;
        CAPTURE(n);
        auto x = random_floats(rows * width, random(), random() % 4 ? 4 : 200);
        const auto bias = random_floats(width, random());
        const auto far_x = on_device(m, s, x), far_bias = on_device(m, s, bias),
                   to = unwritten(m, s, rows * n * size_of(out));
        launch(s, [&](void* native) {
          return kernels.activate(
              out, {at<float>(far_x), biased ? at<float>(far_bias) : nullptr, to.data(), rows, n, on_gpu, gated},
              native);
        });
        if (biased) add_bias(x.data(), bias.data(), rows, width);
        std::vector<std::byte> want(rows * n * size_of(out));
        if (gated)
          for (std::size_t r = 0; r < rows; ++r)
            silu_gate(&x[r * width], &x[r * width + n], &want[r * n * size_of(out)], out, n);
        else
          activate(on_cpu, x.data(), want.data(), out, rows * n);
        check_near(floats_from(m, s, to, out), floats_of(want, out), out, 1e-5f);
      }
  });
}

TEST_CASE("cuda kernels: rows gathered") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    const auto rows = 1 + below(random, 9), n = even(random, 900), count = below(random, rows + 1);
    const auto values = random_floats(rows * n, random());
    std::vector<std::uint32_t> list;
    std::vector<float> want;
    for (std::uint32_t i = 0; i < count; ++i) {
      list.push_back(below(random, rows));
      want.insert(want.end(), values.begin() + list[i] * n, values.begin() + (list[i] + 1) * n);
    }
    const auto from = on_device(m, s, values), far_list = on_device(m, s, list), to = unwritten(m, s, count * n * 4);
    launch(s, [&](void* native) {
      return kernels.gather({at<float>(from), at<float>(to), at<std::uint32_t>(far_list), count, n}, native);
    });
    if (count > 0) CHECK(back_from<float>(m, s, to) == want);
    REQUIRE(!m.wait(s.record()));
  });
}

TEST_CASE("cuda kernels: a type that no kernel is for is refused") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937&) {
    error_code got;
    REQUIRE(!s.launch_native("kernel", {}, [&](void* native) { got = kernels.norm(dtype::f16, {.rows = 1}, native); }));
    CHECK(got == errc::invalid_argument);
    REQUIRE(!m.wait(s.record()));
  });
}

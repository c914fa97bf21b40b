#include "model/cuda/device_weights.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "cokv/runtime/detail/cuda_error.hpp"
#include "cokv/runtime/error.hpp"
#include "kernel/cpu/convert.hpp"
#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/rows.hpp"

namespace cokv {
namespace {

constexpr std::size_t tensor_alignment = 256;  // of every tensor: what products ask for
constexpr std::size_t staging_bytes = 32 << 20;

config_error failed(const device& where, std::size_t bytes, error_code ec) {
  return config_error("device " + std::string(where.name()) + ": weights of " + std::to_string(bytes >> 20) +
                      " MiB: " + ec.message());
}

// Rows that are written one at a time, on any thread.
struct part {
  std::size_t rows, row_bytes, offset;
  std::function<void(std::size_t row, std::byte* to)> write;
};

void write_row(const kernel::matrix_rows& m, std::size_t row, dtype type, std::size_t k, std::byte* to) {
  const auto each = size_of(m.type);
  const auto* from = static_cast<const std::byte*>(m.data) + row * m.row_step * each;
  if (m.column_step == 1 && m.type == type) return (void)std::memcpy(to, from, k * each);
  thread_local std::vector<float> floats;
  floats.resize(k);
  if (m.column_step == 1)
    kernel::to_floats(from, m.type, floats.data(), k);
  else
    for (std::size_t i = 0; i < k; ++i)
      kernel::to_floats(from + i * m.column_step * each, m.type, floats.data() + i, 1);
  kernel::convert(floats.data(), to, type, k);
}

// Finds every tensor its place, and then fills all of them by way of two pieces of pinned memory, of which one is
// written while the other is copied.
class uploader {
 public:
  uploader(device where, device_calls on) : where_(std::move(where)), on_(std::move(on)) {}
  ~uploader() {
    try {
      on_([this] {
        for (auto& half : halves_) half = {};
      });
    } catch (...) {  // the context is gone, and what was of it
    }
  }

  std::size_t add(std::size_t rows, std::size_t row_bytes, std::function<void(std::size_t, std::byte*)> write) {
    const auto at = bytes_;
    parts_.push_back({rows, row_bytes, at, std::move(write)});
    bytes_ += (rows * row_bytes + tensor_alignment - 1) / tensor_alignment * tensor_alignment;
    return at;
  }

  buffer run() {
    const auto memory = on_([this] { return begin(); });
    std::size_t turn = 0;
    for (auto& p : parts_) {
      const auto most = std::max<std::size_t>(1, staging_bytes / p.row_bytes);
      for (std::size_t first = 0; first < p.rows; first += most) {
        const auto count = std::min(most, p.rows - first);
        auto& half = halves_[turn++ % 2];
        on_([&] { wait(half.on); });
        kernel::parallel(count, static_cast<double>(p.row_bytes) / 4,
                         [&](std::size_t r) { p.write(first + r, half.staging.data() + r * p.row_bytes); });
        const auto n = count * p.row_bytes;
        on_([&] {
          check(half.on.copy(memory.slice(p.offset + first * p.row_bytes, n), half.staging.slice(0, n), "weights"));
        });
      }
    }
    on_([this] {
      for (auto& half : halves_) wait(half.on);
    });
    return memory;
  }

 private:
  struct half {
    stream on;
    buffer staging;
  };
  buffer begin() {
    auto memory = where_.allocate(std::max(bytes_, tensor_alignment));
    if (!memory) throw failed(where_, bytes_, memory.error());
    for (auto& half : halves_) {
      auto on = where_.make_stream({.name = "weights"});
      auto staging = where_.allocate(std::max(staging_bytes, widest()), memory_kind::pinned);
      if (!on || !staging) throw failed(where_, bytes_, on ? staging.error() : on.error());
      half = {*on, *staging};
    }
    return *memory;
  }
  std::size_t widest() const {
    std::size_t out = 0;
    for (auto& p : parts_) out = std::max(out, p.row_bytes);
    return out;
  }
  // For a moment: one piece is on its way.
  void wait(stream& s) {
    check(s.launch_native("", {}, [](void* native) {
      return detail::cuda_error(cudaStreamSynchronize(static_cast<cudaStream_t>(native)));
    }));
  }
  void check(error_code ec) {
    if (ec) throw failed(where_, bytes_, ec);
  }

  device where_;
  device_calls on_;
  half halves_[2];
  std::vector<part> parts_;
  std::size_t bytes_ = 0;
};

}  // namespace

device_weights::device_weights(device where, const device_calls& on, dtype compute, const decoder_tensors& from,
                               const std::vector<float>& with_frequencies, const std::vector<float>& with_slopes) {
  uploader up(std::move(where), on);
  // Where things are is known when all of them have a place.
  std::vector<std::function<void()>> place;
  auto later = [&](auto& to, std::size_t at) {
    place.emplace_back(
        [this, &to, at] { to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(memory.data() + at); });
  };
  auto vector = [&](const float*& to, const std::vector<float>& values) {
    if (values.empty()) return;
    later(to, up.add(1, values.size() * sizeof(float), [&values](std::size_t, std::byte* bytes) {
      std::memcpy(bytes, values.data(), values.size() * sizeof(float));
    }));
  };
  auto norm = [&](device_norm& to, const norm_tensors& n) { vector(to.weight, n.weight), vector(to.bias, n.bias); };
  auto linear = [&](device_linear& to, const linear_tensors& l) {
    if (!l) return;
    to.n = l.n(), to.k = l.k;
    later(to.w, up.add(to.n, to.k * size_of(compute), [&l, compute](std::size_t row, std::byte* bytes) {
      auto rows = l.rows.begin();
      for (; row >= rows->count; ++rows) row -= rows->count;
      write_row(*rows, row, compute, l.k, bytes);
    }));
    vector(to.bias, l.bias);
  };
  auto table = [&](device_table& to, const tensor_view& t) -> std::size_t {
    if (t.bytes.empty()) return 0;
    to.type = t.type == dtype::bf16 ? dtype::bf16 : dtype::f32;
    const std::size_t n = t.shape.back();
    const auto at =
        up.add(t.elements() / n, n * size_of(to.type), [&t, n, type = to.type](std::size_t row, std::byte* bytes) {
          write_row({t.bytes.data(), t.type, t.elements() / n, n}, row, type, n, bytes);
        });
    later(to.rows, at);
    return at;
  };

  const auto embedding_at = table(embedding, from.embedding);
  table(positions, from.positions);
  norm(embedding_norm, from.embedding_norm), norm(final_norm, from.final_norm);
  linear(project_in, from.project_in), linear(project_out, from.project_out);
  layers.resize(from.layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto& to = layers[i];
    auto& l = from.layers[i];
    linear(to.qkv, l.qkv), linear(to.out, l.out), linear(to.up, l.up), linear(to.down, l.down);
    norm(to.attention_norm, l.attention_norm), norm(to.mlp_norm, l.mlp_norm);
  }
  const auto& h = from.head;
  const bool tied = h.rows.size() == 1 && h.bias.empty() && h.rows[0].data == from.embedding.bytes.data() &&
                    h.rows[0].column_step == 1 && h.rows[0].row_step == h.k && embedding.type == compute;
  if (tied) {
    head.n = h.n(), head.k = h.k;
    later(head.w, embedding_at);
  } else {
    linear(head, h);
  }
  vector(frequencies, with_frequencies), vector(slopes, with_slopes);
  memory = up.run();
  for (auto& p : place) p();
}

}  // namespace cokv

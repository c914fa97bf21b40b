#include "support/fake_engine_kernels.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "kernel/cuda/attention_kernel.hpp"
#include "kernel/cuda/plain_attention.hpp"
#include "kernel/cuda/row_kernels.hpp"
#include "kernel/cuda/sample_kernel.hpp"
#include "support/fake_cuda_model.hpp"

namespace cokv::test::fake_cuda {
namespace {

namespace gpu = cokv::kernel::gpu;

// f(address, bytes, written)
using each_range = std::function<void(const void*, std::size_t, bool)>;

template <std::uint32_t Threads>
struct every_thread {
  bool backwards;
  template <class F>
  void operator()(F f) const {
    for (std::uint32_t i = 0; i < Threads; ++i) f(backwards ? Threads - 1 - i : i);
  }
};
using row_threads = every_thread<gpu::row_threads>;

template <class T>
std::unique_ptr<T> poisoned_shared() {
  auto made = std::make_unique<T>();
  std::memset(static_cast<void*>(made.get()), 0xff, sizeof(T));
  return made;
}

template <class T>
constexpr std::size_t bytes_of(std::size_t n) {
  return n * sizeof(T);
}
std::uint32_t highest(const std::uint32_t* index, std::uint32_t n) {
  return n ? *std::max_element(index, index + n) : 0;
}

template <class Table, class Out>
struct embed {
  using job = gpu::embed_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    gpu::embed_row<Table, Out>(j, nth, row_threads{backwards});
  }
  static void ranges(const job& j, const each_range& f) {
    f(j.index, bytes_of<std::uint32_t>(j.rows), false);
    f(j.table, bytes_of<Table>(std::size_t{highest(j.index, j.rows) + j.first + 1} * j.n), false);
    f(j.out, bytes_of<Out>(std::size_t{j.rows} * j.n), !j.add);
  }
};

template <class Out>
struct norm {
  using job = gpu::norm_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    gpu::norm_row<Out>(j, *poisoned_shared<gpu::row_sums>(), nth, row_threads{backwards});
  }
  static void ranges(const job& j, const each_range& f) {
    f(j.x, bytes_of<float>(std::size_t{j.rows} * j.n), false);
    if (j.add) f(j.add, bytes_of<float>(j.n), false);
    if (j.kind != gpu::norm_kind::none) f(j.weight, bytes_of<float>(j.n), false);
    if (j.kind == gpu::norm_kind::layer) f(j.bias, bytes_of<float>(j.n), false);
    f(j.out, bytes_of<Out>(std::size_t{j.rows} * j.n), j.out != j.x);
  }
};

struct angles {
  using job = gpu::angles_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    gpu::angles_row(j, nth, row_threads{backwards});
  }
  static void ranges(const job& j, const each_range& f) {
    f(j.frequencies, bytes_of<float>(j.half), false);
    f(j.position, bytes_of<std::uint32_t>(j.rows), false);
    f(j.turns, bytes_of<gpu::float_pair>(std::size_t{j.rows} * j.half), true);
  }
};

template <class T>
struct rotary {
  using job = gpu::rotary_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    gpu::rotary_row<T>(j, nth, row_threads{backwards});
  }
  static void ranges(const job& j, const each_range& f) {
    const auto width = std::size_t{j.heads + 2 * j.kv.heads} * j.kv.dim;
    f(j.qkv, bytes_of<float>(j.rows * width), false);
    if (j.bias) f(j.bias, bytes_of<float>(width), false);
    for (auto* list : {j.position, j.table, j.kept})
      if (list) f(list, bytes_of<std::uint32_t>(j.rows), false);
    if (j.half) f(j.turns, bytes_of<gpu::float_pair>(std::size_t{j.rows} * j.half), false);
    for (std::uint32_t r = 0; r < j.rows; ++r) {
      const auto to = j.kept ? j.kept[r] : r;
      const auto each = std::size_t{j.heads} * j.kv.dim;
      if (to != gpu::not_kept) f(static_cast<const T*>(j.q) + to * each, bytes_of<T>(each), true);
      f(j.kv.blocks + j.table[r], bytes_of<std::uint32_t>(j.position[r] / j.kv.block_tokens + 1), false);
      for (std::uint32_t h = 0; h < j.kv.heads; ++h)
        for (std::uint32_t plane : {0u, 1u})
          f(j.kv.at<T>(j.table[r], j.position[r], h, plane), bytes_of<T>(j.kv.dim), true);
    }
  }
};

template <class Out>
struct activate {
  using job = gpu::activate_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    gpu::activate_rows<Out>(j, nth, row_threads{backwards});
  }
  static void ranges(const job& j, const each_range& f) {
    const auto width = std::size_t{j.n} * (j.gated ? 2 : 1);
    f(j.x, bytes_of<float>(j.rows * width), false);
    if (j.bias) f(j.bias, bytes_of<float>(width), false);
    f(j.out, bytes_of<Out>(std::size_t{j.rows} * j.n), true);
  }
};

struct gather {
  using job = gpu::gather_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    gpu::gather_row(j, nth, row_threads{backwards});
  }
  static void ranges(const job& j, const each_range& f) {
    f(j.rows, bytes_of<std::uint32_t>(j.count), false);
    for (std::uint32_t i = 0; i < j.count; ++i) f(j.from + std::size_t{j.rows[i]} * j.n, bytes_of<float>(j.n), false);
    f(j.to, bytes_of<float>(std::size_t{j.count} * j.n), true);
  }
};

// What all of attention's kernels read, and their results.
template <class T>
void attention_ranges(const gpu::attention_job& j, const each_range& f, bool writes) {
  f(j.tiles, bytes_of<gpu::attention_tile>(j.tile_count), false);
  if (j.slopes) f(j.slopes, bytes_of<float>(j.heads), false);
  for (std::uint32_t i = 0; i < j.tile_count; ++i) {
    const auto& s = j.sequences[j.tiles[i].sequence];
    f(&s, sizeof s, false);
    f(static_cast<const T*>(j.q) + std::size_t{s.row} * j.heads * j.kv.dim,
      bytes_of<T>(std::size_t{s.count} * j.heads * j.kv.dim), false);
    if (writes) {
      auto* out = static_cast<const T*>(j.out) + std::size_t{s.row} * j.heads * j.kv.dim;
      f(out, bytes_of<T>(std::size_t{s.count} * j.heads * j.kv.dim), true);
    }
    const auto blocks = (s.start + s.count + j.kv.block_tokens - 1) / j.kv.block_tokens;
    f(j.kv.blocks + s.table, bytes_of<std::uint32_t>(blocks), false);
    for (std::uint32_t b = 0; b < blocks; ++b) {
      const auto plane = std::size_t{j.kv.block_tokens} * j.kv.dim * 2 * j.kv.heads;
      f(j.kv.at<T>(s.table, b * j.kv.block_tokens, 0, 0), bytes_of<T>(plane), false);
    }
  }
}

// Of all tiles of a job that decodes.
std::size_t slots_of(const gpu::attention_job& j) {
  if (j.tile_count == 0) return 0;
  const auto tile = j.tiles[j.tile_count - 1];
  const auto& of = j.sequences[tile.sequence];
  return tile.slots + std::size_t{j.kv.heads} * gpu::parts_of(of.start + of.count) *
                          gpu::rows_of(of, j.heads / j.kv.heads, tile.first);
}

template <class Shape>
struct attend {
  using job = gpu::attention_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    auto shared = poisoned_shared<gpu::attention_shared<Shape>>();
    typename gpu::attention<Shape>::block threads(backwards);
    gpu::attention<Shape>(j, *shared, threads, nth).run();
  }
  static void ranges(const job& j, const each_range& f) {
    attention_ranges<gpu::bf16>(j, f, !Shape::parts);
    const auto slots = Shape::parts ? slots_of(j) : 0;
    for (auto* to : {j.tops, j.sums})
      if (Shape::parts) f(to, bytes_of<float>(slots), true);
    if (Shape::parts) f(j.results, bytes_of<float>(slots * j.kv.dim), true);
  }
};
struct merge {
  using job = gpu::attention_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    gpu::merge_parts(j, nth, every_thread<gpu::merge_threads>{backwards});
  }
  static void ranges(const job& j, const each_range& f) {
    attention_ranges<gpu::bf16>(j, f, true);
    const auto slots = slots_of(j);
    for (auto* from : {j.tops, j.sums}) f(from, bytes_of<float>(slots), false);
    f(j.results, bytes_of<float>(slots * j.kv.dim), false);
  }
};
template <class T>
struct plain {
  using job = gpu::attention_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    gpu::plain_attention<T>(j, *poisoned_shared<gpu::plain_shared>(), nth, every_thread<gpu::plain_threads>{backwards});
  }
  static void ranges(const job& j, const each_range& f) { attention_ranges<T>(j, f, true); }
};

struct sample {
  using job = gpu::sample_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    using threads = every_thread<gpu::sample_threads>;
    gpu::row_sampling<threads>(j, *poisoned_shared<gpu::sample_shared>(), nth, threads{backwards}).run();
  }
  static void ranges(const job& j, const each_range& f) {
    f(j.rows_of, bytes_of<gpu::sample_row>(j.rows), false);
    f(j.logits, bytes_of<float>(std::size_t{j.rows} * j.vocab), false);
    for (std::uint32_t i = 0; i < j.rows; ++i) {
      auto& r = j.rows_of[i];
      f(j.history + r.history, bytes_of<std::uint32_t>(r.prompt + r.answer), false);
      f(j.biases + r.bias, bytes_of<gpu::token_bias_at>(r.biases), false);
      if (r.last != gpu::not_kept) f(j.tokens + r.last, bytes_of<std::uint32_t>(1), false);
      if (r.looks_back()) f(j.times + std::size_t{i} * j.vocab, bytes_of<std::uint32_t>(j.vocab), true);
    }
    f(j.out, bytes_of<std::int32_t>(j.rows), true);
  }
};
struct feed {
  using job = gpu::feed_job;
  static void block(const job& j, std::uint32_t nth, bool backwards) {
    gpu::feed_tokens(j, nth, row_threads{backwards});
  }
  static void ranges(const job& j, const each_range& f) {
    f(j.places, bytes_of<gpu::fed_place>(j.count), false);
    for (std::uint32_t i = 0; i < j.count; ++i) {
      f(j.from + j.places[i].from, bytes_of<std::int32_t>(1), false);
      f(j.to + j.places[i].to, bytes_of<std::uint32_t>(1), true);
    }
  }
};

template <class K>
class on_fake final : public kernel {
 public:
  on_fake(const typename K::job& job, unsigned blocks, int device) : job_(job), blocks_(blocks), device_(device) {
    for (unsigned b = 0; b < blocks; ++b) left_.push_back(b);
  }

  bool ready() const override { return true; }
  bool done() const override { return begun_ && left_.empty(); }

  void step() override {
    if (!begun_) return begin();
    auto& m = model::get();
    for (auto n = 1 + (m.how.seed ? m.below(blocks_) : blocks_ - 1); n > 0 && !left_.empty(); --n) {
      const auto i = m.how.seed ? m.below(left_.size()) : 0;
      K::block(job_, left_[i], m.how.seed % 2 == 1);
      left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // Where its lists lie on the device, they can't be read before it is its turn: what is freed until then it misses.
  bool uses(const std::byte* p, std::size_t n) const override {
    bool any = false;
    if (!begun_) return any;
    K::ranges(job_, [&](const void* at, std::size_t bytes, bool) {
      auto* first = static_cast<const std::byte*>(at);
      any |= first < p + n && p < first + bytes;
    });
    return any;
  }

 private:
  void begin() {
    begun_ = true;
    bool all = true;
    K::ranges(job_, [&](const void* at, std::size_t bytes, bool) {
      all = all && (bytes == 0 || model::get().has(at, bytes, device_));
    });
    if (!all) {
      model::get().violate("a kernel touches what its device doesn't have");
      return left_.clear();
    }
    K::ranges(job_, [&](const void* at, std::size_t bytes, bool written) {
      if (written) std::memset(const_cast<void*>(at), 0xff, bytes);
    });
  }

  std::shared_ptr<kernel> again() const override { return std::make_shared<on_fake>(job_, blocks_, device_); }

  const typename K::job job_;
  const unsigned blocks_;
  const int device_;
  std::vector<unsigned> left_;
  bool begun_ = false;
};

template <class K>
void know(const char* name) {
  know_kernel(name, [](void** arguments, unsigned blocks, int device) -> std::shared_ptr<kernel> {
    return std::make_shared<on_fake<K>>(*static_cast<const typename K::job*>(arguments[0]), blocks, device);
  });
}

}  // namespace

void know_engine_kernels() {
  using gpu::bf16;
  know<embed<bf16, float>>("cokv_embed_bf16_f32");
  know<embed<float, float>>("cokv_embed_f32_f32");
  know<embed<bf16, bf16>>("cokv_embed_bf16_bf16");
  know<embed<float, bf16>>("cokv_embed_f32_bf16");
  know<norm<float>>("cokv_norm_f32");
  know<norm<bf16>>("cokv_norm_bf16");
  know<angles>("cokv_angles");
  know<rotary<float>>("cokv_rotary_f32");
  know<rotary<bf16>>("cokv_rotary_bf16");
  know<activate<float>>("cokv_activate_f32");
  know<activate<bf16>>("cokv_activate_bf16");
  know<gather>("cokv_gather");
  know<attend<gpu::prompt_shape<32>>>("cokv_attention_32");
  know<attend<gpu::prompt_shape<64>>>("cokv_attention_64");
  know<attend<gpu::prompt_shape<96>>>("cokv_attention_96");
  know<attend<gpu::prompt_shape<128>>>("cokv_attention_128");
  know<attend<gpu::decode_shape<32>>>("cokv_decode_32");
  know<attend<gpu::decode_shape<64>>>("cokv_decode_64");
  know<attend<gpu::decode_shape<96>>>("cokv_decode_96");
  know<attend<gpu::decode_shape<128>>>("cokv_decode_128");
  know<merge>("cokv_merge");
  know<sample>("cokv_sample");
  know<feed>("cokv_feed");
  know<plain<float>>("cokv_plain_attention_f32");
  know<plain<bf16>>("cokv_plain_attention_bf16");
}

}  // namespace cokv::test::fake_cuda

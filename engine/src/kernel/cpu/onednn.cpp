// The one file that knows oneDNN. Debian's library is built with OpenMP, which must not spin beside oneTBB: each
// thread that comes here tells the OpenMP runtime to use one thread, and products are split into tiles by us.
#include "kernel/cpu/onednn.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kernel/cpu/isa.hpp"

namespace cokv::kernel::onednn {
namespace {

constexpr std::size_t width = packed_matrix::width;
constexpr std::size_t weights_of_a_tile = 1 << 20;  // bytes at most; a core's second cache holds them and the rows

void one_thread_only() {
  using setter = void (*)(int);
  // Looked up, not linked: a oneDNN built for oneTBB or for one thread brings no OpenMP runtime.
  static const auto set_threads = reinterpret_cast<setter>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  thread_local const bool done = (set_threads ? set_threads(1) : void(), true);
  (void)done;
}

const dnnl::engine& cpu_engine() {
  static const auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // outlives every thread's use of it
  return *engine;
}

// A product of one shape. Sizes are part of the code that oneDNN compiles, so shapes are kept few: rows in powers of
// two, columns in tiles of one size and what is left.
struct shape {
  dtype type;
  std::size_t rows, columns, k;
  auto operator<=>(const shape&) const = default;
};

struct plan {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
  bool tiles;  // on a matrix unit, as AMX has
};

bool is_amx(const char* implementation) {
  return std::string_view(implementation).find("amx") != std::string_view::npos;
}

plan make_plan(const shape& s) {
  using md = dnnl::memory::desc;
  using dims = dnnl::memory::dims;
  auto dim = [](std::size_t v) { return static_cast<dnnl::memory::dim>(v); };
  bool half = s.type == dtype::bf16;
  auto type = half ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  md x(dims{dim(s.rows), dim(s.k)}, type, dims{dim(s.k), 1});
  md w(dims{dim(s.k), dim(s.columns)}, type,
       half ? dnnl::memory::format_tag::BA16a64b2a : dnnl::memory::format_tag::BA16a64b);
  md y(dims{dim(s.rows), dim(s.columns)}, dnnl::memory::data_type::f32, dims{dim(s.columns), 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // ours, one a thread: plans are shared by threads
#if DNNL_VERSION_MAJOR >= 3
  dnnl::matmul::primitive_desc desc(cpu_engine(), x, w, y, attributes);
#else
  dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x, w, y), attributes, cpu_engine());
#endif
  return {desc, dnnl::matmul(desc), is_amx(desc.impl_info_str())};
}

std::shared_ptr<const plan> plan_for(const shape& s) {
  static auto* lock = new std::mutex;
  static auto* plans = new std::map<shape, std::shared_ptr<const plan>>;
  std::scoped_lock hold(*lock);
  auto& found = (*plans)[s];
  if (!found) found = std::make_shared<const plan>(make_plan(s));
  return found;
}

std::size_t filled_up(std::size_t rows) { return std::max<std::size_t>(16, std::bit_ceil(rows)); }

// The product of a shape with as many rows as it must have for a matrix unit: oneDNN takes few of them elsewhere, where
// they are summed in another order. Nothing where it never does.
std::optional<shape> on_tiles(shape s) {
  s.rows = filled_up(s.rows);
  while (!plan_for(s)->tiles)
    if ((s.rows *= 2) > max_rows) return std::nullopt;
  return s;
}

// What a thread needs to run a plan: memory handles, which are repointed at each call, and scratch.
struct runner {
  explicit runner(const shape& s) : rows(s.rows), what(plan_for(s)) {
    auto& d = what->desc;
    scratch.resize(d.scratchpad_desc().get_size() + 64);
    auto bare = [](const dnnl::memory::desc& m) { return dnnl::memory(m, cpu_engine(), DNNL_MEMORY_NONE); };
    arguments = {{DNNL_ARG_SRC, bare(d.src_desc())},
                 {DNNL_ARG_WEIGHTS, bare(d.weights_desc())},
                 {DNNL_ARG_DST, bare(d.dst_desc())},
                 {DNNL_ARG_SCRATCHPAD, dnnl::memory(d.scratchpad_desc(), cpu_engine(), scratch.data())}};
    x = &arguments.at(DNNL_ARG_SRC), w = &arguments.at(DNNL_ARG_WEIGHTS), y = &arguments.at(DNNL_ARG_DST);
  }
  std::size_t rows;
  std::shared_ptr<const plan> what;
  std::vector<std::byte> scratch;
  std::vector<std::byte> padded;  // x, where it has fewer rows; what the others hold is nobody's
  std::vector<float> result;      // where the result is not whole rows: oneDNN's fast kernels write dense ones only
  std::unordered_map<int, dnnl::memory> arguments;
  dnnl::memory *x, *w, *y;
};

struct shape_hash {
  std::size_t operator()(const shape& s) const noexcept {
    auto h = s.rows * 1000003 + s.columns;
    h = h * 1000003 + s.k;
    return h * 2 + (s.type == dtype::bf16 ? 1 : 0);
  }
};

enum class found { nothing, vectors, tiles };

found probe(dtype type) noexcept {
  try {
    one_thread_only();
    auto p = make_plan({type, 16, 128, 64});
    const std::string_view name = p.desc.impl_info_str();
    if (!name.starts_with("brg")) return found::nothing;
    return is_amx(p.desc.impl_info_str()) ? found::tiles : found::vectors;
  } catch (const dnnl::error&) {
    return found::nothing;
  }
}

found there_is(dtype type) noexcept {
  static const found f32 = probe(dtype::f32), half = probe(dtype::bf16);
  return best_isa() < isa::avx512 ? found::nothing
         : type == dtype::bf16    ? half
         : type == dtype::f32     ? f32
                                  : found::nothing;
}

// What computes that many rows and columns of a product.
shape shape_of(const packed_matrix& w, std::size_t rows, std::size_t columns) {
  const shape s{w.type(), rows, columns, w.k()};
  return there_is(w.type()) == found::tiles ? on_tiles(s).value() : s;
}

// Columns that a product with this matrix, or with either half of it, is cut into.
std::array<std::size_t, 3> columns_of(const packed_matrix& w) {
  const auto tile = tile_columns(w), half = w.n() / 2 % tile;
  return {std::min(tile, w.n()), w.n() % tile, half % width == 0 ? half : 0};
}

// All of a matrix goes one way.
bool all_on_tiles(const packed_matrix& w) {
  thread_local std::map<std::pair<std::size_t, std::size_t>, bool> known;
  auto [at, unknown] = known.try_emplace({w.n(), w.k()});
  if (unknown)
    at->second = std::ranges::all_of(columns_of(w), [&](std::size_t columns) {
      return columns == 0 || on_tiles({w.type(), max_rows, columns, w.k()});
    });
  return at->second;
}

}  // namespace

bool has(dtype type) noexcept { return there_is(type) != found::nothing; }

bool on_matrix_unit(dtype type) noexcept { return there_is(type) == found::tiles; }

bool fits(const packed_matrix& w) {
  // Whole panels only: oneDNN would write zeros into ragged weights at every call to be sure of their padding.
  if (w.n() % width != 0 || w.k() % (w.type() == dtype::bf16 ? 32 : 16) != 0) return false;
  const auto there = there_is(w.type());
  return there == found::vectors || (there == found::tiles && all_on_tiles(w));
}

std::size_t tile_rows(const packed_matrix& w, std::size_t left) noexcept {
  if (left >= 64 || !on_matrix_unit(w.type())) return std::bit_floor(std::min(left, max_rows));
  return left;
}

std::size_t tile_columns(const packed_matrix& w) noexcept {
  std::size_t columns = 256;
  while (columns > width && (columns * w.k() * size_of(w.type()) > weights_of_a_tile || w.n() / columns < 6))
    columns /= 2;
  return columns;
}

void tile(const void* x, const packed_matrix& w, float* y, std::size_t stride, std::size_t rows, std::size_t column,
          std::size_t columns, bool accumulate) {
  one_thread_only();
  thread_local dnnl::stream stream(cpu_engine());
  thread_local std::unordered_map<shape, runner, shape_hash> runners;
  const shape s{w.type(), on_matrix_unit(w.type()) ? filled_up(rows) : rows, columns, w.k()};
  auto at = runners.find(s);
  if (at == runners.end()) at = runners.try_emplace(s, shape_of(w, rows, columns)).first;
  auto& r = at->second;
  if (r.rows > rows) {
    const auto bytes = rows * w.k() * size_of(w.type());
    r.padded.resize(r.rows * w.k() * size_of(w.type()));
    std::memcpy(r.padded.data(), x, bytes);
    x = r.padded.data();
  }
  r.x->set_data_handle(const_cast<void*>(x), stream);
  r.w->set_data_handle(const_cast<std::byte*>(w.panel(column / width)), stream);
  bool direct = columns == stride && !accumulate && r.rows == rows;
  if (!direct && r.result.empty()) r.result.resize(r.rows * columns);
  r.y->set_data_handle(direct ? y : r.result.data(), stream);
  r.what->primitive.execute(stream, r.arguments);
  if (direct) return;
  for (std::size_t i = 0; i < rows; ++i) {
    const float* from = r.result.data() + i * columns;
    float* to = y + i * stride;
    if (accumulate)
      for (std::size_t c = 0; c < columns; ++c) to[c] += from[c];
    else
      std::memcpy(to, from, columns * sizeof(float));
  }
}

void prepare(const packed_matrix& w) {
  one_thread_only();
  for (std::size_t rows = 1; rows <= max_rows; rows *= 2)
    for (auto columns : columns_of(w))
      if (columns) plan_for(shape_of(w, rows, columns));
}

}  // namespace cokv::kernel::onednn

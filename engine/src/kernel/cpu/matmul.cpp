// The one file that knows oneDNN. Debian's library is built with OpenMP, which must not spin beside oneTBB: each
// thread that comes here tells the OpenMP runtime to use one thread, and products are split into tiles by us.
#include "kernel/cpu/matmul.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {
namespace {

constexpr std::size_t width = packed_matrix::width;
constexpr std::size_t max_tile_rows = 64, tile_columns = 256;

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
// two up to 64, columns in tiles of 256 or all of them.
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

bool on_tiles(const char* implementation) { return std::string_view(implementation).find("amx") != std::string_view::npos; }

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
  return {desc, dnnl::matmul(desc), on_tiles(desc.impl_info_str())};
}

std::shared_ptr<const plan> plan_for(const shape& s) {
  static auto* lock = new std::mutex;
  static auto* plans = new std::map<shape, std::shared_ptr<const plan>>;
  std::scoped_lock hold(*lock);
  auto& found = (*plans)[s];
  if (!found) found = std::make_shared<const plan>(make_plan(s));
  return found;
}

// The same product with as many rows as it must have for a matrix unit: oneDNN takes few of them elsewhere, where they are
// summed in another order. Nothing where it never does.
std::optional<shape> with_rows_for_tiles(shape s) {
  while (!plan_for(s)->tiles)
    if ((s.rows *= 2) > max_tile_rows) return std::nullopt;
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
  std::vector<std::byte> padded;  // x, where it has fewer rows: the others are zeros
  std::vector<float> tile;  // where the result is not whole rows: oneDNN's fast kernels write dense ones only
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

found probe_onednn(dtype type) noexcept {
  try {
    one_thread_only();
    auto p = make_plan({type, 16, 128, 64});
    const std::string_view name = p.desc.impl_info_str();
    if (!name.starts_with("brg")) return found::nothing;
    return on_tiles(p.desc.impl_info_str()) ? found::tiles : found::vectors;
  } catch (const dnnl::error&) {
    return found::nothing;
  }
}

found onednn_for(dtype type) noexcept {
  static const found f32 = probe_onednn(dtype::f32), half = probe_onednn(dtype::bf16);
  return best_isa() < isa::avx512 ? found::nothing
         : type == dtype::bf16    ? half
         : type == dtype::f32     ? f32
                                  : found::nothing;
}

// Of vectors our own kernels make as much where the processor multiplies bf16 itself: up to a third more for few rows.
bool prefers_onednn(dtype type) noexcept {
  const auto has = onednn_for(type);
  return has == found::tiles || (has == found::vectors && best_isa() < isa::avx512_bf16);
}

// Columns that a product with this matrix may be cut into.
std::array<std::size_t, 3> tiles_of(std::size_t n) { return {n, std::min(tile_columns, n), n % tile_columns}; }

// All of a matrix goes one way.
bool all_on_tiles(const packed_matrix& w) {
  thread_local std::map<std::pair<std::size_t, std::size_t>, bool> known;
  auto [at, unknown] = known.try_emplace({w.n(), w.k()});
  if (unknown)
    at->second = std::ranges::all_of(tiles_of(w.n()), [&](std::size_t columns) {
      return columns == 0 || with_rows_for_tiles({w.type(), max_tile_rows, columns, w.k()});
    });
  return at->second;
}

bool fits_onednn(const packed_matrix& w) {
  // Whole panels only: oneDNN would write zeros into ragged weights at every call to be sure of their padding.
  if (w.n() % width != 0 || w.k() % (w.type() == dtype::bf16 ? 32 : 16) != 0) return false;
  const auto has = onednn_for(w.type());
  return has == found::vectors || (has == found::tiles && all_on_tiles(w));
}

void onednn_tile(const void* x, const packed_matrix& w, float* y, std::size_t rows, std::size_t column,
                 std::size_t columns, bool accumulate) {
  one_thread_only();
  thread_local dnnl::stream stream(cpu_engine());
  thread_local std::unordered_map<shape, runner, shape_hash> runners;
  shape s{w.type(), rows, columns, w.k()};
  auto at = runners.find(s);
  if (at == runners.end())
    at = runners.try_emplace(s, onednn_for(w.type()) == found::tiles ? with_rows_for_tiles(s).value() : s).first;
  auto& r = at->second;
  if (r.rows > rows) {
    const auto bytes = rows * w.k() * size_of(w.type());
    r.padded.resize(r.rows * w.k() * size_of(w.type()));
    std::memcpy(r.padded.data(), x, bytes);
    x = r.padded.data();
  }
  r.x->set_data_handle(const_cast<void*>(x), stream);
  r.w->set_data_handle(const_cast<std::byte*>(w.panel(column / width)), stream);
  bool direct = columns == w.n() && !accumulate && r.rows == rows;
  if (!direct && r.tile.empty()) r.tile.resize(r.rows * columns);
  r.y->set_data_handle(direct ? y : r.tile.data(), stream);
  r.what->primitive.execute(stream, r.arguments);
  if (direct) return;
  for (std::size_t i = 0; i < rows; ++i) {
    const float* from = r.tile.data() + i * columns;
    float* to = y + i * w.n() + column;
    if (accumulate)
      for (std::size_t c = 0; c < columns; ++c) to[c] += from[c];
    else
      std::memcpy(to, from, columns * sizeof(float));
  }
}

}  // namespace

bool has_onednn(dtype type) noexcept { return onednn_for(type) != found::nothing; }

void prepare(const packed_matrix& w) {
  if (!fits_onednn(w) || !prefers_onednn(w.type())) return;
  one_thread_only();
  for (std::size_t rows = 1; rows <= max_tile_rows; rows *= 2)
    for (auto columns : tiles_of(w.n()))
      if (columns) plan_for({w.type(), rows, columns, w.k()});
}

void matmul(const void* x, const packed_matrix& w, float* y, std::size_t m, bool accumulate, split how,
            matmul_path path) {
  if (m == 0 || w.n() == 0) return;
  const bool onednn =
      fits_onednn(w) && (path == matmul_path::automatic ? prefers_onednn(w.type()) : path == matmul_path::onednn);
  std::vector<std::pair<std::size_t, std::size_t>> rows;  // first, count
  for (std::size_t at = 0; at < m;) {
    // Of shapes there shall be few where each has its own code.
    auto count = std::min(max_tile_rows, onednn ? std::bit_floor(m - at) : m - at);
    rows.emplace_back(at, count);
    at += count;
  }
  auto threads = how == split::none ? 1 : static_cast<std::size_t>(concurrency());
  std::size_t tile = rows.size() >= 2 * threads || threads == 1 ? w.n() : std::min(tile_columns, w.n());
  std::size_t columns = (w.n() + tile - 1) / tile;
  double tile_rows = static_cast<double>(std::min(m, max_tile_rows)), area = static_cast<double>(w.k() * tile);
  double ns = std::max(2 * tile_rows * area / 200, area * static_cast<double>(size_of(w.type())) / 40);
  // Columns are the outer loop: a tile of weights stays in the cache while the rows pass by.
  auto piece = [&](std::size_t i) {
    auto [row, count] = rows[i % rows.size()];
    auto column = i / rows.size() * tile;
    auto* from = static_cast<const std::byte*>(x) + row * w.k() * size_of(w.type());
    auto* to = y + row * w.n();
    if (onednn)
      onednn_tile(from, w, to, count, column, std::min(tile, w.n() - column), accumulate);
    else
      panel_matmul(from, w, to, count, column / width, (std::min(column + tile, w.n()) + width - 1) / width,
                   accumulate);
  };
  if (threads > 1) return parallel(columns * rows.size(), ns, piece);
  for (std::size_t i = 0; i < columns * rows.size(); ++i) piece(i);
}

}  // namespace cokv::kernel

#include "support/fake_cublaslt.hpp"

#include <cstring>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernel/cpu/simd.hpp"
#include "support/fake_cuda_model.hpp"

namespace cokv::test::fake_cublaslt {
namespace {

using fake_cuda::model;

options how;

struct handle {};
struct description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N;
};
struct layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t lead;
};
struct preference {
  std::size_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

std::set<void*>& alive() {
  static std::set<void*> all;
  return all;
}

template <class T, class H>
T* known(H h, const char* call) {
  if (alive().contains(h)) return reinterpret_cast<T*>(h);
  model::get().violate(std::string(call) + " with what is gone");
  return nullptr;
}
template <class H, class T>
H born(T* made) {
  alive().insert(made);
  return reinterpret_cast<H>(made);
}
template <class T, class H>
cublasStatus_t end(H h, const char* call) {
  auto lock = model::get().lock();
  auto* gone = known<T>(h, call);
  alive().erase(h);
  delete gone;
  return gone ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

#define CALL(name)                                                      \
  auto& m = model::get();                                               \
  auto lock = m.lock();                                                 \
  if (auto planned = m.enter("cublasLt" #name); planned != cudaSuccess) \
  return m.lost != cudaSuccess ? CUBLAS_STATUS_EXECUTION_FAILED : static_cast<cublasStatus_t>(planned)

// What an algorithm is for, and for how many rows it was found.
struct purpose {
  std::uint64_t n = 0, k = 0, rows = 0;
  cudaDataType type{};
  std::size_t workspace = 0;
  std::uint64_t found_for = rows;
};

// Those that were found, or checked, for a number of rows.
std::set<std::pair<std::uint64_t, std::uint64_t>>& allowed() {
  static std::set<std::pair<std::uint64_t, std::uint64_t>> all;
  return all;
}

// Of W [n][k], x [rows][k] and y [rows][n], as the library sees them.
std::optional<purpose> fitting(const description& d, const layout& w, const layout& x, const layout& c,
                               const layout& y) {
  const bool whole = w.lead == static_cast<std::int64_t>(w.rows) && x.lead == static_cast<std::int64_t>(x.rows) &&
                     y.lead == static_cast<std::int64_t>(y.rows);
  const bool fit =
      w.rows == x.rows && w.columns == y.rows && x.columns == y.columns && c.rows == y.rows && c.columns == y.columns;
  const bool types = w.type == x.type && (w.type == CUDA_R_16BF || w.type == CUDA_R_32F) && y.type == CUDA_R_32F &&
                     c.type == CUDA_R_32F && d.compute == CUBLAS_COMPUTE_32F && d.scale == CUDA_R_32F;
  if (!whole || !fit || !types || d.a != CUBLAS_OP_T) return std::nullopt;
  return purpose{w.columns, w.rows, x.columns, w.type, how.workspace};
}

class multiplication final : public fake_cuda::kernel {
 public:
  multiplication(const purpose& p, const void* w, const void* x, float* y, bool accumulate, void* workspace, int device)
      : p_(p), w_(w), x_(x), y_(y), accumulate_(accumulate), workspace_(workspace), device_(device) {}

  bool ready() const override { return true; }
  bool done() const override { return done_; }
  void step() override {
    if (begun_) return compute();
    begun_ = true;
    for (auto [at, bytes] : ranges())
      if (!model::get().has(at, bytes, device_)) {
        model::get().violate("a product touches what its device doesn't have");
        return (void)(done_ = true);
      }
    if (!accumulate_) std::memset(y_, 0xDB, p_.rows * p_.n * sizeof *y_);
    std::memset(workspace_, 0xDB, p_.workspace);
  }
  bool uses(const std::byte* p, std::size_t n) const override {
    for (auto [at, bytes] : ranges())
      if (at < p + n && p < at + bytes) return true;
    return false;
  }

 private:
  std::vector<std::pair<const std::byte*, std::size_t>> ranges() const {
    const std::size_t each = p_.type == CUDA_R_16BF ? 2 : 4;
    auto bytes = [](const void* p) { return static_cast<const std::byte*>(p); };
    return {{bytes(w_), p_.n * p_.k * each},
            {bytes(x_), p_.rows * p_.k * each},
            {bytes(y_), p_.rows * p_.n * sizeof *y_},
            {bytes(workspace_), p_.workspace}};
  }
  double at(const void* from, std::size_t i) const {
    if (p_.type == CUDA_R_32F) return static_cast<const float*>(from)[i];
    return cokv::kernel::to_float(static_cast<const cokv::kernel::bf16*>(from)[i]);
  }
  void compute() {
    for (std::size_t r = 0; r < p_.rows; ++r)
      for (std::size_t c = 0; c < p_.n; ++c) {
        double sum = accumulate_ ? y_[r * p_.n + c] : 0;
        for (std::size_t i = 0; i < p_.k; ++i) sum += at(w_, c * p_.k + i) * at(x_, r * p_.k + i);
        if (how.by_rows) sum *= 1 + 1e-6 * static_cast<double>(p_.found_for % 5);
        y_[r * p_.n + c] = static_cast<float>(sum);
      }
    done_ = true;
  }

  std::shared_ptr<kernel> again() const override {
    return std::make_shared<multiplication>(p_, w_, x_, y_, accumulate_, workspace_, device_);
  }

  const purpose p_;
  const void *w_, *x_;
  float* y_;
  const bool accumulate_;
  void* workspace_;
  const int device_;
  bool begun_ = false, done_ = false;
};

cublasStatus_t create(cublasLtHandle_t* out) {
  CALL(Create);
  *out = born<cublasLtHandle_t>(new handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasLtHandle_t h) { return end<handle>(h, "cublasLtDestroy"); }

cublasStatus_t create_description(cublasLtMatmulDesc_t* out, cublasComputeType_t compute, cudaDataType_t scale) {
  CALL(MatmulDescCreate);
  *out = born<cublasLtMatmulDesc_t>(new description{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_description(cublasLtMatmulDesc_t d) { return end<description>(d, "cublasLtMatmulDescDestroy"); }
cublasStatus_t set_description(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const void* value,
                               std::size_t bytes) {
  CALL(MatmulDescSetAttribute);
  auto* of = known<description>(d, "cublasLtMatmulDescSetAttribute");
  if (!of || what != CUBLASLT_MATMUL_DESC_TRANSA || bytes != sizeof of->a) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&of->a, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t create_layout(cublasLtMatrixLayout_t* out, cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                             std::int64_t lead) {
  CALL(MatrixLayoutCreate);
  *out = born<cublasLtMatrixLayout_t>(new layout{type, rows, columns, lead});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_layout(cublasLtMatrixLayout_t l) { return end<layout>(l, "cublasLtMatrixLayoutDestroy"); }

cublasStatus_t create_preference(cublasLtMatmulPreference_t* out) {
  CALL(MatmulPreferenceCreate);
  *out = born<cublasLtMatmulPreference_t>(new preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_preference(cublasLtMatmulPreference_t p) {
  return end<preference>(p, "cublasLtMatmulPreferenceDestroy");
}
cublasStatus_t set_preference(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what,
                              const void* value, std::size_t bytes) {
  CALL(MatmulPreferenceSetAttribute);
  auto* of = known<preference>(p, "cublasLtMatmulPreferenceSetAttribute");
  if (of && what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == sizeof of->reductions)
    return std::memcpy(&of->reductions, value, bytes), CUBLAS_STATUS_SUCCESS;
  if (!of || what != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES || bytes != sizeof of->workspace)
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&of->workspace, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

std::optional<purpose> fitting(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t w, cublasLtMatrixLayout_t x,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y, const char* call) {
  auto* what = known<description>(d, call);
  layout* all[] = {known<layout>(w, call), known<layout>(x, call), known<layout>(c, call), known<layout>(y, call)};
  if (!what || !all[0] || !all[1] || !all[2] || !all[3]) return std::nullopt;
  return fitting(*what, *all[0], *all[1], *all[2], *all[3]);
}

cublasStatus_t find_algorithm(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t w,
                              cublasLtMatrixLayout_t x, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y,
                              cublasLtMatmulPreference_t wishes, int most, cublasLtMatmulHeuristicResult_t* out,
                              int* found) {
  CALL(MatmulAlgoGetHeuristic);
  constexpr auto call = "cublasLtMatmulAlgoGetHeuristic";
  auto* p = known<preference>(wishes, call);
  const auto what = fitting(d, w, x, c, y, call);
  if (!known<handle>(h, call) || !p || !what || most < 1) return CUBLAS_STATUS_INVALID_VALUE;
  *found = how.finds && p->workspace >= how.workspace;
  if (*found) {
    *out = {};
    static_assert(sizeof(purpose) <= sizeof out->algo);
    std::memcpy(&out->algo, &*what, sizeof *what);
    out->workspaceSize = what->workspace;
    allowed().insert({what->rows, what->rows});
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_algorithm(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t w,
                               cublasLtMatrixLayout_t x, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y,
                               const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* out) {
  CALL(MatmulAlgoCheck);
  constexpr auto call = "cublasLtMatmulAlgoCheck";
  const auto what = fitting(d, w, x, c, y, call);
  if (!known<handle>(h, call) || !what || !algorithm) return CUBLAS_STATUS_INVALID_VALUE;
  purpose meant;
  std::memcpy(&meant, algorithm, sizeof meant);
  if (meant.n != what->n || meant.k != what->k || meant.type != what->type) return CUBLAS_STATUS_NOT_SUPPORTED;
  *out = {};
  out->workspaceSize = meant.workspace;
  allowed().insert({meant.found_for, what->rows});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t multiply(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void* alpha, const void* w,
                        cublasLtMatrixLayout_t w_layout, const void* x, cublasLtMatrixLayout_t x_layout,
                        const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* y,
                        cublasLtMatrixLayout_t y_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                        std::size_t bytes, cudaStream_t s) {
  CALL(Matmul);
  constexpr auto call = "cublasLtMatmul";
  const auto what = fitting(d, w_layout, x_layout, c_layout, y_layout, call);
  if (!known<handle>(h, call) || !what || !algorithm) return CUBLAS_STATUS_INVALID_VALUE;
  if (!m.valid(s, call)) return CUBLAS_STATUS_INVALID_VALUE;
  purpose meant;
  std::memcpy(&meant, algorithm, sizeof meant);
  if (meant.n != what->n || meant.k != what->k || !allowed().contains({meant.found_for, what->rows}) ||
      meant.type != what->type) {
    m.violate("cublasLtMatmul with an algorithm of another shape");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (bytes < meant.workspace || !workspace || *static_cast<const float*>(alpha) != 1 || c != y)
    return CUBLAS_STATUS_INVALID_VALUE;
  meant.rows = what->rows;
  fake_cuda::operation op;
  op.kernel = std::make_shared<multiplication>(meant, w, x, static_cast<float*>(y),
                                               *static_cast<const float*>(beta) != 0, workspace, s->device);
  m.enqueue(*s, std::move(op));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

void reset(options o) { how = o; }

kernel::cublaslt_api table() {
  return {.Create = create,
          .Destroy = destroy,
          .GetStatusString = [](cublasStatus_t s) -> const char* {
            return s == CUBLAS_STATUS_INTERNAL_ERROR ? "an internal operation failed" : "another failure";
          },
          .GetVersion = []() -> std::size_t { return CUBLAS_VER_MAJOR * 10000; },
          .Matmul = multiply,
          .MatmulAlgoCheck = check_algorithm,
          .MatmulAlgoGetHeuristic = find_algorithm,
          .MatmulDescCreate = create_description,
          .MatmulDescDestroy = destroy_description,
          .MatmulDescSetAttribute = set_description,
          .MatmulPreferenceCreate = create_preference,
          .MatmulPreferenceDestroy = destroy_preference,
          .MatmulPreferenceSetAttribute = set_preference,
          .MatrixLayoutCreate = create_layout,
          .MatrixLayoutDestroy = destroy_layout};
}

std::size_t live() {
  auto lock = model::get().lock();
  return alive().size();
}

}  // namespace cokv::test::fake_cublaslt

#include "kernel/cuda/device_products.hpp"

#include "cokv/runtime/error.hpp"

namespace cokv::kernel {
namespace {

// A prompt's steps have as many shapes as there are counts of rows: more than these are forgotten.
constexpr std::size_t most_shapes = 4096;
constexpr std::uintptr_t alignment = 256;
// Whose way all numbers of rows take that are to be summed alike: a decoding batch's.
constexpr std::size_t invariant_rows = 64;

bool aligned(const void* p) { return p && reinterpret_cast<std::uintptr_t>(p) % alignment == 0; }

cudaDataType_t cuda_type(dtype t) { return t == dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

}  // namespace

device_products::device_products(const cublaslt_api& api, cublasLtHandle_t handle)
    : api_(api), handle_(handle, api.Destroy), turned_(nullptr, api.MatmulDescDestroy) {}

template <class T, class... A>
result<device_products::owned<T>> device_products::make(cublasStatus_t (*create)(T*, A...),
                                                        cublasStatus_t (*destroy)(T), A... arguments) const {
  T made = nullptr;
  if (auto s = create(&made, arguments...)) return cublas_error(s);
  return owned<T>(made, destroy);
}

result<device_products> device_products::open(bool batch_invariant) {
  auto api = cublaslt_api::load();
  if (!api) return api.error();
  cublasLtHandle_t handle = nullptr;
  if (auto s = api->Create(&handle)) return cublas_error(s);
  device_products out(*api, handle);
  out.batch_invariant_ = batch_invariant;
  auto turned = out.make<cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t>(
      api->MatmulDescCreate, api->MatmulDescDestroy, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  if (!turned) return turned.error();
  out.turned_ = std::move(*turned);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  if (auto s =
          api->MatmulDescSetAttribute(out.turned_.get(), CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed))
    return cublas_error(s);
  return out;
}

// The library's matrices are stored by columns: our rows of x and y are its columns, and W is what it transposes.
result<device_products::plan> device_products::plan_for(const device_product& p) const {
  auto layouts = [&](std::size_t rows) -> result<plan> {
    auto one = [&](cudaDataType_t type, std::size_t down, std::size_t across) {
      return make<cublasLtMatrixLayout_t, cudaDataType_t, std::uint64_t, std::uint64_t, std::int64_t>(
          api_.MatrixLayoutCreate, api_.MatrixLayoutDestroy, type, down, across, static_cast<std::int64_t>(down));
    };
    auto w = one(cuda_type(p.type), p.k, p.n), x = one(cuda_type(p.type), p.k, rows), y = one(CUDA_R_32F, p.n, rows);
    for (auto* made : {&w, &x, &y})
      if (!*made) return made->error();
    return plan{std::move(*x), std::move(*w), std::move(*y), {}, 0};
  };
  auto out = layouts(p.rows);
  if (!out) return out;
  auto like = batch_invariant_ ? layouts(invariant_rows) : layouts(p.rows);
  if (!like) return like;
  auto way = best(*like);
  if (!way) return way.error();
  if (batch_invariant_) {
    cublasLtMatmulHeuristicResult_t here{};
    if (auto s = api_.MatmulAlgoCheck(handle_.get(), turned_.get(), out->w.get(), out->x.get(), out->y.get(),
                                      out->y.get(), &way->algo, &here))
      return cublas_error(s);
    if (here.workspaceSize > workspace_bytes) return errc::unsupported;
    way->workspaceSize = here.workspaceSize;
  }
  out->algorithm = way->algo;
  out->workspace = way->workspaceSize;
  return out;
}

result<cublasLtMatmulHeuristicResult_t> device_products::best(const plan& of) const {
  auto wishes = make<cublasLtMatmulPreference_t>(api_.MatmulPreferenceCreate, api_.MatmulPreferenceDestroy);
  if (!wishes) return wishes.error();
  auto wish = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    return cublas_error(api_.MatmulPreferenceSetAttribute(wishes->get(), what, &value, sizeof value));
  };
  if (auto ec = wish(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::size_t{workspace_bytes})) return ec;
  if (batch_invariant_)
    if (auto ec = wish(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}))
      return ec;
  cublasLtMatmulHeuristicResult_t out{};
  int found = 0;
  if (auto s = api_.MatmulAlgoGetHeuristic(handle_.get(), turned_.get(), of.w.get(), of.x.get(), of.y.get(), of.y.get(),
                                           wishes->get(), 1, &out, &found))
    return cublas_error(s);
  if (found == 0 || out.state) return errc::unsupported;
  return out;
}

error_code device_products::multiply(const device_product& p, const buffer& workspace, void* stream) {
  if ((p.type != dtype::bf16 && p.type != dtype::f32) || p.n == 0 || p.k == 0) return errc::invalid_argument;
  if (p.rows == 0) return {};
  if (!aligned(p.x) || !aligned(p.w) || !aligned(p.y) || !aligned(workspace.data()) ||
      workspace.size() < workspace_bytes)
    return errc::invalid_argument;
  const shape key(p.type, p.rows, p.n, p.k);
  auto at = known_.find(key);
  if (at == known_.end()) {
    auto made = plan_for(p);
    if (!made) return made.error();
    if (known_.size() == most_shapes) known_.clear();
    at = known_.emplace(key, std::move(*made)).first;
  }
  const auto& how = at->second;
  const float one = 1, beta = p.accumulate ? 1 : 0;
  return cublas_error(api_.Matmul(handle_.get(), turned_.get(), &one, p.w, how.w.get(), p.x, how.x.get(), &beta, p.y,
                                  how.y.get(), p.y, how.y.get(), &how.algorithm, workspace.data(), how.workspace,
                                  static_cast<cudaStream_t>(stream)));
}

}  // namespace cokv::kernel

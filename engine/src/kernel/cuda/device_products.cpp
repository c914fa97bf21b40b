#include "kernel/cuda/device_products.hpp"

#include "cokv/runtime/error.hpp"

namespace cokv::kernel {
namespace {

// A prompt's steps have as many shapes as there are counts of rows: more than these are forgotten.
constexpr std::size_t most_shapes = 4096;
constexpr std::uintptr_t alignment = 256;

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

result<device_products> device_products::open() {
  auto api = cublaslt_api::load();
  if (!api) return api.error();
  cublasLtHandle_t handle = nullptr;
  if (auto s = api->Create(&handle)) return cublas_error(s);
  device_products out(*api, handle);
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
result<device_products::plan> device_products::plan_for(const product& p) const {
  auto layout = [&](cudaDataType_t type, std::size_t down, std::size_t across) {
    return make<cublasLtMatrixLayout_t, cudaDataType_t, std::uint64_t, std::uint64_t, std::int64_t>(
        api_.MatrixLayoutCreate, api_.MatrixLayoutDestroy, type, down, across, static_cast<std::int64_t>(down));
  };
  auto w = layout(cuda_type(p.type), p.k, p.n), x = layout(cuda_type(p.type), p.k, p.rows),
       y = layout(CUDA_R_32F, p.n, p.rows);
  for (auto* made : {&w, &x, &y})
    if (!*made) return made->error();
  auto wishes = make<cublasLtMatmulPreference_t>(api_.MatmulPreferenceCreate, api_.MatmulPreferenceDestroy);
  if (!wishes) return wishes.error();
  const std::size_t room = workspace_bytes;
  if (auto s = api_.MatmulPreferenceSetAttribute(wishes->get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                                 sizeof room))
    return cublas_error(s);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  if (auto s = api_.MatmulAlgoGetHeuristic(handle_.get(), turned_.get(), w->get(), x->get(), y->get(), y->get(),
                                           wishes->get(), 1, &best, &found))
    return cublas_error(s);
  if (found == 0 || best.state) return errc::unsupported;
  return plan{std::move(*x), std::move(*w), std::move(*y), best.algo, best.workspaceSize};
}

error_code device_products::multiply(const product& p, const buffer& workspace, void* stream) {
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

#include "kernel/cuda/cublaslt_api.hpp"

#include <atomic>
#include <optional>
#include <string>

#include "cokv/runtime/detail/shared_library.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::kernel {
namespace {

std::atomic<decltype(&::cublasLtGetStatusString)> text_of = nullptr;
std::optional<cublaslt_api> in_its_stead;

class category final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "cublas"; }
  std::string message(int value) const override {
    const auto text = text_of.load();
    return text ? text(static_cast<cublasStatus_t>(value)) : "error " + std::to_string(value) + " of cuBLAS";
  }
};

}  // namespace

error_code cublas_error(cublasStatus_t status) {
  static const category instance;
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return {};
    case CUBLAS_STATUS_ALLOC_FAILED:
      return errc::out_of_memory;
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return errc::unsupported;
    default:
      return error_code(status, instance);
  }
}

result<cublaslt_api> cublaslt_api::load(const char* name) {
  detail::shared_library library(name);
  cublaslt_api api;
#define COKV_CUBLASLT_FIND(name) library.find("cublasLt" #name, api.name);
  COKV_CUBLASLT_FUNCTIONS(COKV_CUBLASLT_FIND)
#undef COKV_CUBLASLT_FIND
  // An older one may not know what this one's header says.
  if (!library.whole() || api.GetVersion() < CUBLAS_VER_MAJOR * 10000) return errc::unsupported;
  text_of = api.GetStatusString;
  return api;
}

void cublaslt_api::stand_in(const cublaslt_api* api) {
  in_its_stead = api ? std::optional(*api) : std::nullopt;
  text_of = api ? api->GetStatusString : nullptr;
}

result<cublaslt_api> cublaslt_api::load() {
  if (in_its_stead) return *in_its_stead;
  static const auto usual = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  return load(detail::library_name("COKV_CUBLASLT_LIBRARY", usual.c_str()));
}

}  // namespace cokv::kernel

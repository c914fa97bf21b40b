#include "link/nccl/nccl_api.hpp"

#include <atomic>
#include <optional>

#include "cokv/runtime/detail/shared_library.hpp"
#include "cokv/runtime/error.hpp"
#include "link/nccl/nccl_version.hpp"

namespace cokv::detail {
namespace {

std::atomic<decltype(&::ncclGetErrorString)> nccl_text = nullptr;
std::optional<nccl_api> in_its_stead;

class nccl_errors final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "nccl"; }
  std::string message(int value) const override {
    const auto text = nccl_text.load();
    return text ? text(static_cast<ncclResult_t>(value)) : "error " + std::to_string(value) + " of NCCL";
  }
};

}  // namespace

void use_texts_of(const nccl_api& api) { nccl_text = api.GetErrorString; }

error_code nccl_error(ncclResult_t status) {
  static const nccl_errors instance;
  return status == ncclSuccess || status == ncclInProgress ? error_code() : error_code(status, instance);
}

ncclResult_t nccl_state(const nccl_api& api, ncclComm_t comm) {
  auto state = ncclSuccess;
  const auto asked = api.CommGetAsyncError(comm, &state);
  return asked == ncclSuccess ? state : asked;
}

result<nccl_api> nccl_api::load(const char* name) {
  shared_library library(name);
  nccl_api api;
#define COKV_NCCL_FIND(name) library.find("nccl" #name, api.name);
  COKV_NCCL_FUNCTIONS(COKV_NCCL_FIND)
#undef COKV_NCCL_FIND
  if (!library.whole()) return errc::unsupported;
  int version = 0;
  // An older one doesn't know the configuration that this one's header describes.
  if (api.GetVersion(&version) != ncclSuccess || version < NCCL_VERSION_CODE) return errc::unsupported;
  use_texts_of(api);
  return api;
}

void nccl_api::stand_in(const nccl_api* api) { in_its_stead = api ? std::optional(*api) : std::nullopt; }

result<nccl_api> nccl_api::load() {
  if (in_its_stead) return *in_its_stead;
  return load(library_name("COKV_NCCL_LIBRARY", "libnccl.so.2"));
}

result<std::string> nccl_version() {
  auto api = nccl_api::load();
  if (!api) return api.error();
  int v = 0;
  if (api->GetVersion(&v) != ncclSuccess) return errc::unsupported;
  return "NCCL " + std::to_string(v / 10000) + "." + std::to_string(v % 10000 / 100) + "." + std::to_string(v % 100);
}

}  // namespace cokv::detail

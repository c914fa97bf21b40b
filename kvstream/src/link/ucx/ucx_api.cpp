#include "link/ucx/ucx_api.hpp"

#include <atomic>
#include <cstdlib>

#include "cokv/runtime/detail/shared_library.hpp"
#include "cokv/runtime/error.hpp"
#include "link/ucx/ucx_network.hpp"

namespace cokv::detail {
namespace {

std::atomic<decltype(&::ucs_status_string)> ucx_text = nullptr;

class ucx_errors final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "ucx"; }
  std::string message(int value) const override {
    const auto text = ucx_text.load();
    return text ? text(static_cast<ucs_status_t>(value)) : "unknown error";
  }
};

}  // namespace

error_code ucx_error(ucs_status_t status) {
  switch (status) {
    case UCS_OK:
      return {};
    case UCS_ERR_CANCELED:
      return asio::error::operation_aborted;
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
      return asio::error::connection_reset;
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_UNREACHABLE:
      return asio::error::connection_refused;
    case UCS_ERR_BUSY:
      return asio::error::address_in_use;
    case UCS_ERR_TIMED_OUT:
      return asio::error::timed_out;
    default:
      static const ucx_errors instance;
      return error_code(status, instance);
  }
}

result<ucx_api> ucx_api::load(const char* name) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  // UCX rewrites the entries of mmap and its like, which are the sanitizer's: both at once end in a wild jump.
  ::setenv("UCX_MEM_EVENTS", "n", 0);
#endif
#endif
  shared_library library(name);
  ucx_api api;
#define COKV_UCX_FIND(name) library.find("ucp_" #name, api.name);
  COKV_UCX_FUNCTIONS(COKV_UCX_FIND)
#undef COKV_UCX_FIND
  decltype(&::ucs_status_string) text = nullptr;
  library.find("ucs_status_string", text);  // of a library that comes with it
  if (!library.whole()) return errc::unsupported;
  unsigned major = 0, minor = 0, patch = 0;
  api.get_version(&major, &minor, &patch);
  if (major != UCP_API_MAJOR || minor < UCP_API_MINOR) return errc::unsupported;
  ucx_text = text;
  return api;
}

result<ucx_api> ucx_api::load() { return load(library_name("COKV_UCX_LIBRARY", "libucp.so.0")); }

result<std::string> ucx_version() {
  auto api = ucx_api::load();
  if (!api) return api.error();
  unsigned major = 0, minor = 0, patch = 0;
  api->get_version(&major, &minor, &patch);
  return "UCX " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

}  // namespace cokv::detail

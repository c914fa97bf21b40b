#include "cuda_error.hpp"

#include <string>

#include "cokv/runtime/detail/cuda_error.hpp"

namespace cokv::cuda {
namespace {

class category_type final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "cuda"; }
  std::string message(int value) const override {
    const auto e = static_cast<cudaError_t>(value);
    return std::string(cudaGetErrorName(e)) + ": " + cudaGetErrorString(e);
  }
  boost::system::error_condition default_error_condition(int value) const noexcept override {
    if (value == cudaErrorMemoryAllocation)
      return boost::system::errc::make_error_condition(boost::system::errc::not_enough_memory);
    return {value, *this};
  }
};

}  // namespace

const boost::system::error_category& category() noexcept {
  static const category_type instance;
  return instance;
}

bool sticks(cudaError_t e) noexcept {
  switch (e) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

bool means_no_device(cudaError_t e) noexcept {
  return e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver || e == cudaErrorInvalidDevice ||
         e == cudaErrorStubLibrary || e == cudaErrorSystemDriverMismatch || e == cudaErrorCompatNotSupportedOnDevice ||
         e == cudaErrorInitializationError;
}

}  // namespace cokv::cuda

namespace cokv::detail {

error_code cuda_error(int code) noexcept {
  const auto e = static_cast<cudaError_t>(code);
  cuda::drop(e);
  return cuda::make_error(e);
}

}  // namespace cokv::detail

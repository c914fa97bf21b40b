#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

class category final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "cokv"; }

  std::string message(int value) const override {
    switch (static_cast<errc>(value)) {
      case errc::deadline:
        return "deadline passed";
      case errc::queue_full:
        return "queue full";
      case errc::closed:
        return "closed";
      case errc::out_of_memory:
        return "out of memory";
      case errc::out_of_range:
        return "out of range";
      case errc::unknown_device:
        return "unknown device";
      case errc::no_device:
        return "no such device";
      case errc::wrong_device:
        return "belongs to another device";
      case errc::device_failed:
        return "device failed";
      case errc::device_lost:
        return "device lost";
      case errc::unsupported:
        return "not supported";
      case errc::invalid_argument:
        return "invalid argument";
      case errc::not_found:
        return "not found";
      case errc::already_exists:
        return "already exists";
      case errc::stale_reference:
        return "stale block reference";
      case errc::digest_mismatch:
        return "digest mismatch";
      case errc::namespace_mismatch:
        return "namespace mismatch";
      case errc::protocol:
        return "protocol error";
      case errc::too_large:
        return "too large";
      case errc::store_full:
        return "store full";
      case errc::permission_denied:
        return "permission denied";
      case errc::unavailable:
        return "unavailable";
      case errc::in_use:
        return "in use by another process";
      case errc::partial:
        return "done in part";
    }
    return "unknown cokv error";
  }

  boost::system::error_condition default_error_condition(int value) const noexcept override {
    namespace ec = boost::system::errc;
    switch (static_cast<errc>(value)) {
      case errc::deadline:
        return ec::make_error_condition(ec::timed_out);
      case errc::out_of_memory:
        return ec::make_error_condition(ec::not_enough_memory);
      case errc::unsupported:
        return ec::make_error_condition(ec::not_supported);
      case errc::invalid_argument:
        return ec::make_error_condition(ec::invalid_argument);
      case errc::protocol:
        return ec::make_error_condition(ec::protocol_error);
      case errc::permission_denied:
        return ec::make_error_condition(ec::permission_denied);
      default:
        return {value, *this};
    }
  }
};

}  // namespace

const boost::system::error_category& cokv_category() noexcept {
  static const category instance;
  return instance;
}

}  // namespace cokv

#include "cache/problems.hpp"

#include "cokv/runtime/error.hpp"

namespace cokv::cache {

http::problem problem_of(error_code ec) {
  using http::status;
  struct row {
    errc code;
    status answer;
    const char* message;
    const char* reason;
  };
  static constexpr row rows[] = {
      {errc::not_found, status::not_found, "no such block", "not_found"},
      {errc::digest_mismatch, status::unprocessable_entity, "a digest does not match: nothing was stored",
       "digest_mismatch"},
      {errc::namespace_mismatch, status::conflict, "another namespace or layout", "namespace_mismatch"},
      {errc::store_full, status::insufficient_storage, "the store has no room", "store_full"},
      {errc::out_of_memory, status::insufficient_storage, "the store has no room", "store_full"},
      {errc::too_large, status::payload_too_large, "beyond the limits of this server", "too_large"},
      {errc::invalid_argument, status::bad_request, "malformed request", "invalid_argument"},
      {errc::out_of_range, status::bad_request, "malformed request", "invalid_argument"},
      {errc::protocol, status::bad_request, "a broken or cut stream: nothing was stored", "protocol"},
      {errc::unsupported, status::bad_request, "frames of a version or digest that is not spoken here", "unsupported"},
  };
  for (const auto& r : rows)
    if (ec == r.code) return {r.answer, r.message, {}, r.reason};
  return {status::service_unavailable, "the store can't be used now: " + ec.message(), {}, "unavailable"};
}

}  // namespace cokv::cache

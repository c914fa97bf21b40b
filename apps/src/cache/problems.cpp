#include "cache/problems.hpp"

#include "cokv/runtime/error.hpp"

namespace cokv::cache {

http::problem not_lent() {
  return {http::status::not_found,
          "no memory is lent here: it is on the cache's Unix socket, with --socket",
          {},
          "not_found"};
}

http::problem problem_of(error_code ec, transfer way) {
  using http::status;
  struct row {
    errc code;
    status answer;
    const char* message;
    const char* reason;
  };
  static constexpr row rows[] = {
      {errc::not_found, status::not_found, "no such block", "not_found"},
      {errc::digest_mismatch, status::unprocessable_entity, "a digest does not match", "digest_mismatch"},
      {errc::namespace_mismatch, status::conflict, "another namespace or layout", "namespace_mismatch"},
      {errc::store_full, status::insufficient_storage, "the store has no room", "store_full"},
      {errc::out_of_memory, status::insufficient_storage, "the store has no room", "store_full"},
      {errc::too_large, status::payload_too_large, "more than the store holds in all", "too_large"},
      {errc::invalid_argument, status::bad_request, "a key is there twice, or a segment has no bytes",
       "invalid_argument"},
      {errc::out_of_range, status::bad_request, "malformed request", "invalid_argument"},
      {errc::protocol, status::bad_request, "a broken or cut stream", "protocol"},
      {errc::unsupported, status::bad_request, "frames of a version or digest that is not spoken here", "unsupported"},
  };
  for (const auto& r : rows)
    if (ec == r.code) {
      const bool of_the_body = ec == errc::digest_mismatch || ec == errc::protocol;
      const char* and_so = of_the_body && way == transfer::storing ? ": nothing was stored" : "";
      return {r.answer, std::string(r.message) + and_so, {}, r.reason};
    }
  return {status::service_unavailable, "the store can't be used now: " + ec.message(), {}, "unavailable"};
}

}  // namespace cokv::cache

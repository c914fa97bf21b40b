#include "cluster/error_name.hpp"

#include <array>
#include <utility>

#include "cokv/runtime/error.hpp"

namespace cokv::cluster {
namespace {

const std::array<std::pair<std::string_view, error_code>, 17> names{{
    {"aborted", asio::error::operation_aborted},
    {"closed", errc::closed},
    {"deadline", errc::deadline},
    {"device_failed", errc::device_failed},
    {"device_lost", errc::device_lost},
    {"digest_mismatch", errc::digest_mismatch},
    {"invalid_argument", errc::invalid_argument},
    {"namespace_mismatch", errc::namespace_mismatch},
    {"not_found", errc::not_found},
    {"out_of_memory", errc::out_of_memory},
    {"permission_denied", errc::permission_denied},
    {"protocol", errc::protocol},
    {"queue_full", errc::queue_full},
    {"stale_reference", errc::stale_reference},
    {"too_large", errc::too_large},
    {"unavailable", errc::unavailable},
    {"unsupported", errc::unsupported},
}};

}  // namespace

std::string_view name_of(error_code ec) {
  if (!ec) return "ok";
  for (const auto& [name, code] : names)
    if (code == ec) return name;
  return "failed";
}

error_code error_of(std::string_view name) {
  for (const auto& [known, code] : names)
    if (known == name) return code;
  return errc::partial;
}

}  // namespace cokv::cluster

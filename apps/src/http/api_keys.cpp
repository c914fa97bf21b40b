#include "http/api_keys.hpp"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <boost/beast/core/string.hpp>
#include <fstream>

#include "cokv/runtime/error.hpp"

namespace cokv::http {
namespace {

std::array<unsigned char, 32> digest_of(std::string_view key) {
  std::array<unsigned char, 32> out;
  ::SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), out.data());
  return out;
}

std::string_view trimmed(std::string_view s) {
  const auto from = s.find_first_not_of(" \t\r");
  if (from == s.npos) return {};
  return s.substr(from, s.find_last_not_of(" \t\r") - from + 1);
}

}  // namespace

api_keys api_keys::load(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw config_error("--api-key-file " + path + ": cannot be read");
  api_keys out;
  for (std::string line; std::getline(in, line);)
    if (auto key = trimmed(line); !key.empty() && !key.starts_with('#')) out.add(key);
  if (in.bad()) throw config_error("--api-key-file " + path + ": cannot be read");
  if (out.open()) throw config_error("--api-key-file " + path + ": holds no key");
  return out;
}

void api_keys::add(std::string_view key) { digests_.push_back(digest_of(key)); }

bool api_keys::allows(std::string_view authorization) const {
  if (open()) return true;
  constexpr std::string_view scheme = "Bearer ";
  if (authorization.size() <= scheme.size() ||
      !boost::beast::iequals(boost::beast::string_view(authorization.data(), scheme.size()), scheme.data()))
    return false;
  const auto given = digest_of(trimmed(authorization.substr(scheme.size())));
  int found = 0;
  for (const auto& d : digests_) found |= ::CRYPTO_memcmp(d.data(), given.data(), d.size()) == 0;
  return found != 0;
}

}  // namespace cokv::http

// The keys that may use a server: a text file with one key a line (blank lines and lines that start with # aside).
// Only digests are kept, and every comparison looks at all of them, so the time taken tells nothing about a key.
//
//     auto keys = api_keys::load("keys.txt");
//     if (!keys.allows(request[field::authorization])) ...   // "Bearer KEY"
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace cokv::http {

class api_keys {
 public:
  api_keys() = default;  // no keys: everyone may

  // config_error: the file can't be read, or holds no key (which would lock everyone out, or let everyone in).
  static api_keys load(const std::string& path);

  void add(std::string_view key);
  bool open() const { return digests_.empty(); }
  bool allows(std::string_view authorization) const;

 private:
  std::vector<std::array<unsigned char, 32>> digests_;
};

}  // namespace cokv::http

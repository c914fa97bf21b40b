// Certificates for tests, made with OpenSSL's calls in a temporary folder: an authority and what it vouches for. Keys are
// Ed25519, whose signatures are all as long, so a simulated handshake has the same bytes to move every time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cokv::test {

struct certificate_files {
  std::string certificate, key;
};

class authority {
 public:
  explicit authority(const std::string& name = "cokv test authority");
  ~authority();
  authority(const authority&) = delete;

  const std::string& file() const { return ca_.certificate; }  // for tls_client_options::ca_file
  // `names`: as "DNS:cache.local" or "IP:127.0.0.1". Valid from and until so many seconds from now.
  certificate_files issue(const std::vector<std::string>& names, long from = -3600, long until = 3600L * 24 * 3650);

 private:
  struct parts;
  std::filesystem::path folder_;
  certificate_files ca_;
  parts* parts_;
  int serial_ = 1;
};

}  // namespace cokv::test

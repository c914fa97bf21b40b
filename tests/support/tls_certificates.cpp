#include "support/tls_certificates.hpp"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

namespace cokv::test {
namespace {

void must(bool ok) {
  if (!ok) throw std::runtime_error("a test's certificate can't be made");
}

EVP_PKEY* make_key() {
  auto* key = ::EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  must(key);
  return key;
}

void extend(X509* to, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  ::X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  auto* extension = ::X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  must(extension && ::X509_add_ext(to, extension, -1));
  ::X509_EXTENSION_free(extension);
}

X509* make_certificate(const std::string& name, EVP_PKEY* key, X509* issuer, int serial, long from, long until) {
  auto* out = ::X509_new();
  must(out);
  ::X509_set_version(out, 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(out), serial);
  ::X509_gmtime_adj(::X509_getm_notBefore(out), from);
  ::X509_gmtime_adj(::X509_getm_notAfter(out), until);
  ::X509_set_pubkey(out, key);
  auto* subject = ::X509_get_subject_name(out);
  const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
  must(::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, text, -1, -1, 0));
  ::X509_set_issuer_name(out, issuer ? ::X509_get_subject_name(issuer) : subject);
  return out;
}

void write_pem(const std::string& path, auto write) {
  auto* file = std::fopen(path.c_str(), "w");
  must(file);
  const bool ok = write(file);
  std::fclose(file);
  must(ok);
}

certificate_files save(const std::filesystem::path& folder, const std::string& name, X509* certificate, EVP_PKEY* key) {
  certificate_files out{(folder / (name + ".pem")).string(), (folder / (name + ".key")).string()};
  write_pem(out.certificate, [&](std::FILE* f) { return ::PEM_write_X509(f, certificate) == 1; });
  write_pem(out.key,
            [&](std::FILE* f) { return ::PEM_write_PrivateKey(f, key, nullptr, nullptr, 0, nullptr, nullptr) == 1; });
  return out;
}

}  // namespace

struct authority::parts {
  EVP_PKEY* key;
  X509* certificate;
};

authority::authority(const std::string& name) {
  static std::atomic<int> number = 0;
  folder_ = std::filesystem::temp_directory_path() /
            ("cokv_tls_" + std::to_string(::getpid()) + "_" + std::to_string(++number));
  std::filesystem::create_directories(folder_);
  auto* key = make_key();
  auto* certificate = make_certificate(name, key, nullptr, serial_++, -3600, 3600L * 24 * 36500);
  extend(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
  extend(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
  must(::X509_sign(certificate, key, nullptr) > 0);
  parts_ = new parts{key, certificate};
  ca_ = save(folder_, "ca", certificate, key);
}

authority::~authority() {
  ::X509_free(parts_->certificate);
  ::EVP_PKEY_free(parts_->key);
  delete parts_;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

certificate_files authority::issue(const std::vector<std::string>& names, long from, long until) {
  auto* key = make_key();
  const int number = serial_++;
  auto* certificate = make_certificate("cokv test", key, parts_->certificate, number, from, until);
  std::string all;
  for (const auto& n : names) all += (all.empty() ? "" : ",") + n;
  if (!all.empty()) extend(certificate, parts_->certificate, NID_subject_alt_name, all);
  must(::X509_sign(certificate, parts_->key, nullptr) > 0);
  auto out = save(folder_, "leaf" + std::to_string(number), certificate, key);
  ::X509_free(certificate);
  ::EVP_PKEY_free(key);
  return out;
}

}  // namespace cokv::test

#include "http/api_keys.hpp"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <fstream>
#include <span>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/size.hpp"

namespace cokv::http {
namespace {

std::array<unsigned char, 32> digest_of(std::string_view key) {
  std::array<unsigned char, 32> out;
  ::SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), out.data());
  return out;
}

constexpr std::string_view blank = " \t\r";

std::string_view trimmed(std::string_view s) {
  const auto from = s.find_first_not_of(blank);
  if (from == s.npos) return {};
  return s.substr(from, s.find_last_not_of(blank) - from + 1);
}

std::vector<std::string_view> split(std::string_view s, std::string_view at) {
  std::vector<std::string_view> out;
  while (!s.empty()) {
    const auto end = std::min(s.find_first_of(at), s.size());
    if (end != 0) out.push_back(s.substr(0, end));
    s.remove_prefix(std::min(end + 1, s.size()));
  }
  return out;
}

[[noreturn]] void wrong(const std::string& what) { throw config_error(what); }

bool is_name(std::string_view s) {
  return !s.empty() && s.size() <= 64 && std::ranges::all_of(s, [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  });
}

std::uint8_t rights_of(std::string_view text) {
  std::uint8_t out = 0;
  for (const auto word : split(text, ",")) {
    if (word == "read")
      out |= static_cast<std::uint8_t>(right::read);
    else if (word == "write")
      out |= static_cast<std::uint8_t>(right::write);
    else if (word == "admin")
      out |= static_cast<std::uint8_t>(right::admin);
    else
      wrong("rights are read, write and admin, not " + std::string(word));
  }
  if (out == 0) wrong("rights= names no right");
  return out;
}

std::uint64_t size_of(std::string_view option, std::string_view text) {
  const auto bytes = parse_size(text);
  if (!bytes || *bytes == 0) wrong(std::string(option) + "= takes a size (512MiB, 4GiB), not " + std::string(text));
  return *bytes;
}

void set_quota(tenant_quotas& all, const key_holder& who, std::uint64_t bytes) {
  if (bytes == 0) return;
  if (who.name.empty()) wrong("a quota needs a name=");
  if (const auto [at, made] = all.emplace(who.name, bytes); !made && at->second != bytes)
    wrong(who.name + " has another quota in another line");
}

}  // namespace

bool key_holder::may_use(const namespace_id& ns) const {
  return namespaces.empty() || std::ranges::find(namespaces, ns) != namespaces.end();
}

api_keys::api_keys() : anyone_(std::make_shared<const key_holder>()) {}

api_keys api_keys::load(const std::string& path) {
  const auto said = "--api-key-file " + path;
  std::ifstream in(path);
  if (!in) throw config_error(said + ": cannot be read");
  api_keys out;
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const auto text = trimmed(line);
    if (text.empty() || text.starts_with('#')) continue;
    try {
      out.add_line(text);
    } catch (const config_error& e) {
      throw config_error(said + ", line " + std::to_string(number) + ": " + e.what());
    }
  }
  if (in.bad()) throw config_error(said + ": cannot be read");
  if (out.open()) throw config_error(said + ": holds no key");
  return out;
}

void api_keys::add_line(std::string_view line) {
  const auto words = split(line, blank);
  const auto is_option = [](std::string_view w) { return w.find('=') != w.npos; };
  // A key with blanks in it, as it was always allowed to have.
  if (std::none_of(words.begin() + 1, words.end(), is_option)) return add(line);
  key_holder who;
  std::uint64_t memory = 0, disk = 0;
  std::vector<std::string_view> seen;
  for (const auto word : std::span(words).subspan(1)) {
    const auto at = word.find('=');
    const auto option = word.substr(0, at), value = at == word.npos ? std::string_view() : word.substr(at + 1);
    if (option != "namespace" && std::ranges::find(seen, option) != seen.end())
      wrong(std::string(option) + "= is there twice");
    seen.push_back(option);
    if (option == "name") {
      if (!is_name(value)) wrong("a name has letters, digits, dots, dashes and underscores, at most 64");
      who.name = value;
    } else if (option == "rights") {
      who.rights = rights_of(value);
    } else if (option == "memory") {
      memory = size_of(option, value);
    } else if (option == "disk") {
      disk = size_of(option, value);
    } else if (option == "namespace") {
      const auto ns = namespace_id::parse(value);
      if (!ns) wrong("a namespace is 64 hexadecimal digits");
      who.namespaces.push_back(*ns);
    } else {  // what it says is not repeated: it may be a part of a key
      wrong("behind a key stand name=, rights=, memory=, disk= and namespace=");
    }
  }
  set_quota(memory_, who, memory);
  set_quota(disk_, who, disk);
  add(words[0], std::move(who));
}

void api_keys::add(std::string_view key, key_holder who) {
  const auto of = digest_of(key);
  for (const auto& e : entries_) {
    if (e.of != of) continue;
    if (*e.who == who) return;
    wrong("the same key stands in another line with other rights");
  }
  entries_.push_back({of, std::make_shared<const key_holder>(std::move(who))});
}

std::shared_ptr<const key_holder> api_keys::find(std::string_view authorization) const {
  if (open()) return anyone_;
  constexpr std::string_view scheme = "Bearer ";
  if (authorization.size() <= scheme.size() ||
      !boost::beast::iequals(boost::beast::string_view(authorization.data(), scheme.size()), scheme.data()))
    return nullptr;
  const auto given = digest_of(trimmed(authorization.substr(scheme.size())));
  const entry* found = nullptr;
  for (const auto& e : entries_) found = ::CRYPTO_memcmp(e.of.data(), given.data(), given.size()) == 0 ? &e : found;
  return found ? found->who : nullptr;
}

}  // namespace cokv::http

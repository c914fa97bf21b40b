// The keys that may use a server, and what each of them may do: a text file with one key a line (blank lines and lines
// that start with # aside). A line that is a key alone may everything.
//
//     KEY [name=NAME] [rights=read,write,admin] [memory=SIZE] [disk=SIZE] [namespace=HEX]...
//
//     auto keys = api_keys::load("keys.txt");
//     auto who = keys.find(request[field::authorization]);   // "Bearer KEY"
//     if (!who) ...                                          // 401
//     if (!who->may(right::write)) ...                       // 403
//
// Only digests are kept, and every comparison looks at all of them, so the time taken tells nothing about a key.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/kvstream/store.hpp"

namespace cokv::http {

enum class right : std::uint8_t { read = 1, write = 2, admin = 4 };

constexpr std::uint8_t operator|(right a, right b) {
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}

// Who holds a key.
struct key_holder {
  std::string name;  // the tenant; empty: none
  std::uint8_t rights = (right::read | right::write) | static_cast<std::uint8_t>(right::admin);
  std::vector<namespace_id> namespaces = {};  // empty: all

  bool may(right r) const { return (rights & static_cast<std::uint8_t>(r)) != 0; }
  bool may_any(std::uint8_t any) const { return any == 0 || (rights & any) != 0; }
  bool may_use(const namespace_id& ns) const;
  bool operator==(const key_holder&) const = default;
};

class api_keys {
 public:
  api_keys();  // no keys: everyone may everything

  // config_error, with the number of the line but never the key: the file can't be read, holds no key (which would lock
  // everyone out, or let everyone in), or a line that can't be understood or contradicts another.
  static api_keys load(const std::string& path);

  void add(std::string_view key, key_holder who = {});
  bool open() const { return entries_.empty(); }
  // The holder of the key in an Authorization field; null when nobody is.
  std::shared_ptr<const key_holder> find(std::string_view authorization) const;
  bool allows(std::string_view authorization) const { return find(authorization) != nullptr; }

  // What the lines say of their names' quotas.
  const tenant_quotas& memory() const { return memory_; }
  const tenant_quotas& disk() const { return disk_; }

 private:
  using digest = std::array<unsigned char, 32>;
  struct entry {
    digest of;
    std::shared_ptr<const key_holder> who;
  };
  void add_line(std::string_view line);

  std::vector<entry> entries_;
  std::shared_ptr<const key_holder> anyone_;
  tenant_quotas memory_, disk_;
};

}  // namespace cokv::http

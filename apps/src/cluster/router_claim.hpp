// Which router calls a worker: its epoch, the life of its process, and for how long after each call the worker keeps to it.
// Every call of a router that is active carries it, as the field Cokv-Epoch; a router that would be active sends it with
// PUT /v1/epoch.
//
//     Cokv-Epoch: 7; router=5f0c; lease=1500
//
//     fields.set(claim_field, to_field(claim));
//     auto claim = parse_claim(request.fields[claim_field]);      // none: malformed
#pragma once

#include <boost/json/object.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/fields.hpp"

namespace cokv::cluster {

inline constexpr char claim_field[] = "Cokv-Epoch";
// Of a router: with the number of a ring behind it, it is a ring's epoch (ring.hpp).
constexpr std::uint64_t most_router_epoch = (std::uint64_t{1} << 29) - 1;
constexpr std::chrono::milliseconds most_router_lease = std::chrono::minutes(10);

struct router_claim {
  std::uint64_t epoch = 0;  // from 1; 0: none
  std::string router;       // its life, an id (fields.hpp)
  std::chrono::milliseconds lease{};
  friend bool operator==(const router_claim&, const router_claim&) = default;
};

std::string to_field(const router_claim& c);
std::optional<router_claim> parse_claim(std::string_view text);

boost::json::object to_json(const router_claim& c);
parsed<router_claim> read_claim(const boost::json::value& v);

// What a worker says of what it has promised.
struct told_promise {
  std::uint64_t epoch = 0;  // 0: nothing
  std::string router;
  std::chrono::milliseconds left{};  // of that router's lease; 0: another may have a promise
};
boost::json::object to_json(const told_promise& p);
parsed<told_promise> read_promise(const boost::json::value& v);

}  // namespace cokv::cluster

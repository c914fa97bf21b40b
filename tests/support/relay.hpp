// A wire that goes wrong on order: it stands between a client and a server, counts the bytes of either direction since
// the last plan, and flips one, ends the connection or falls silent at a chosen offset. A plan is for the connections
// that are made after it; what was under way passes as it is. Real and simulated networks.
//
//     relay wire(ctx.get_executor(), server);
//     wire.arm({.way = relay::to_client, .flip_at = 300});
//     http_store store(ex, "http://" + wire.at().to_string());
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cokv/runtime/net.hpp"

namespace cokv::test {

class relay {
 public:
  enum direction { to_server, to_client };
  struct plan {
    direction way = to_server;
    std::optional<std::uint64_t> flip_at{};   // the byte at this offset is inverted
    std::optional<std::uint64_t> cut_at{};    // both sides are closed when so many bytes have passed
    std::optional<std::uint64_t> stall_at{};  // nothing further passes in this direction
    std::uint8_t mask = 0xff;
  };

  relay(asio::any_io_executor ex, endpoint upstream);
  ~relay();

  endpoint at() const;
  void arm(plan p);  // counts from 0 again
  void disarm() { arm({}); }
  std::uint64_t passed(direction way) const;
  bool fired() const;  // the plan's offset was reached
  std::size_t connections() const;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace cokv::test

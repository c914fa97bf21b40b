// A prefill worker's memory that decode workers keep layers of their KV in (loan.hpp): so much at most, each part as long as
// the link of who has it is up.
//
//     loans lent(windows, device, {.life = life, .limit = bytes, .links = [&] { return door.urls(); }});
//     lent.route(server);
//     door.on("loan/", [&](peer_link from) { return lent.keep(std::move(from)); });
//
// | route          | answer                                                                                               |
// |----------------|------------------------------------------------------------------------------------------------------|
// | GET /v1/loans  | {bytes, free, loans}: all, what is not lent, and how many have a part                                |
// | POST /v1/loans | {bytes}: 201 {id, life, links, window}. 507: not so much is free. 503: the device can't give it, or  |
// |                | too many have some. Who does not come over a link in time, named loan/ID, has it no more            |
//
// What a borrower wrote is not cleared before the next one has it: both have keys to all workers. Belongs to one context.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/device.hpp"
#include "http/server.hpp"

namespace cokv::cluster {

struct loan_options {
  std::string life;         // this worker's
  std::uint64_t limit = 0;  // bytes
  std::function<std::vector<std::string>()> links;
  duration patience = std::chrono::seconds(10);  // for who asked to come
  std::size_t most = 256;                        // at a time
};

class loans {
 public:
  // The device's memory is lent; of the host, such that others on this machine map it.
  loans(window_table windows, device where, loan_options o);
  loans(const loans&) = delete;
  ~loans();

  void route(http::server& s);
  // As long as the link is up; one that names no loan, or one that somebody has, is nobody's.
  awaitable<void> keep(peer_link from);

  std::uint64_t lent() const noexcept;  // bytes, those that a borrower may still touch included
  std::size_t count() const noexcept;

 private:
  struct state;
  static awaitable<void> tell(std::shared_ptr<state> s, http::exchange& x);
  static awaitable<void> lend(std::shared_ptr<state> s, http::exchange& x);
  static awaitable<void> expire(std::shared_ptr<state> s, std::string id);

  std::shared_ptr<state> state_;
};

}  // namespace cokv::cluster

// The links to those who will decode, one for each of their lives, made when it is first needed.
//
//     auto link = co_await links.get(ticket.life, ticket.links);       // result<peer_link>
//
// Of a worker's URLs the first that works is taken; one that did not is passed over for a while. Who answers has to be
// who was meant: on a machine of another the same path or port is another worker's. Cancelling a get() leaves the others
// that wait for the same link as they are. Belongs to one context.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/semaphore.hpp"

namespace cokv::cluster {

class link_pool {
 public:
  link_pool(window_table windows, link_options options, duration back_off = std::chrono::seconds(30));

  // The error of the last URL that was tried; errc::not_found where there is none; errc::unavailable: another worker
  // answers there.
  awaitable<result<peer_link>> get(std::string life, std::vector<std::string> urls);
  void set_namespace(const namespace_id& ns) { options_.ns = ns; }  // of links from now on
  // Says goodbye on all of them.
  void close();

 private:
  struct peer {
    explicit peer(asio::any_io_executor ex) : turn(std::move(ex), 1) {}
    semaphore turn;
    peer_link link;
  };
  awaitable<result<peer_link>> connect(const std::string& life, const std::vector<std::string>& urls);

  window_table windows_;
  link_options options_;
  duration back_off_;
  std::map<std::string, std::shared_ptr<peer>> peers_;  // by life
  std::map<std::string, time_point> passed_over_;       // URLs, until then
};

}  // namespace cokv::cluster

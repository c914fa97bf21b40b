// Who keeps a copy of whose answers: each decode worker's KV goes to those behind it in a ring, which the router makes and
// tells them of.
//
//     ring_book ring(1);
//     if (ring.stand({{3, {life_a, kv}}, {5, {life_b, kv}}})) tell_all();   // of those that are here: another ring than before
//     ring.place_of(3, links_of)                               // what 3 is told: copies go to 5
//     ring.holders(3)                                          // who has copies of its answers, also when it is gone
//
// Copies are of use only to those whose KV is the same: others are passed over, as if each kind had a ring of its own.
//
// A ring's epoch is above those of all before it: workers refuse what is of an older one. It begins with the epoch of the
// router that makes it (router_claim.hpp), in the upper bits: rings of a router that was replaced are below those of the one
// that came for it, and two that know of each other do not outbid each other. Belongs to one context.
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cluster/ticket.hpp"

namespace cokv::cluster {

constexpr std::uint32_t most_replicas = 2;
constexpr std::uint64_t most_epoch = std::uint64_t{1} << 53;  // exact in any JSON
constexpr int ring_bits = 24;                                 // of it, below the router's

struct ring_member {
  std::string life;
  std::vector<std::string> links;  // its doors' URLs
  friend bool operator==(const ring_member&, const ring_member&) = default;
};

// One worker's.
struct ring_place {
  std::uint64_t epoch = 0;
  std::uint32_t replicas = 0;           // copies that are wanted of each answer; successors may be fewer
  std::vector<ring_member> successors;  // who gets them, the nearest first
};
boost::json::object to_json(const ring_place& p);
parsed<ring_place> read_ring_place(const boost::json::value& v);

// Of whom an answer was, and which attempt: what its copies are found by.
struct lost_answer {
  std::string life;
  std::uint32_t attempt = 0;
};
boost::json::object to_json(const lost_answer& l);
parsed<lost_answer> read_lost_answer(const boost::json::value& v);

class ring_book {
 public:
  using id = std::uint32_t;  // worker_table's
  struct standing {
    std::string life;
    kv_wire wire = {};
    friend bool operator==(const standing&, const standing&) = default;
  };

  // Throws config_error for more than most_replicas.
  explicit ring_book(std::uint32_t replicas);

  // Those that decode. True: another ring than before, of a new epoch.
  bool stand(std::map<id, standing> here);
  // Somebody was told such an epoch by another router: this one is above it from now on, and to be told. Not of a later
  // router's, which replaces this one; nor of the upper half of what an epoch may be: nobody gets there but by a lie.
  void heard(std::uint64_t epoch);
  // Of the router that makes it, from now on: above all rings of routers before it, and to be told.
  void reign(std::uint64_t router_epoch);

  bool contains(id one) const { return here_.contains(one); }
  std::uint64_t epoch() const noexcept { return epoch_; }
  std::uint32_t replicas() const noexcept { return replicas_; }
  // Of one that stands in it.
  ring_place place_of(id of, const std::function<std::vector<std::string>(id)>& links_of) const;
  // Who got copies of its answers in the last ring that it stood in, the nearest first.
  std::vector<id> holders(id of) const;
  void forget(id of) { holders_.erase(of); }

 private:
  std::vector<id> behind(id of) const;

  std::uint32_t replicas_;
  std::uint64_t epoch_ = 0;
  std::uint64_t router_ = 0;  // its router's; 0: not known
  std::map<id, standing> here_;
  std::map<id, std::vector<id>> holders_;
};

}  // namespace cokv::cluster

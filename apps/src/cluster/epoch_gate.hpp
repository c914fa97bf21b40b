// Which router a worker listens to: the one of the highest epoch that it was called with. Without any I/O.
//
//     epoch_gate gate;
//     switch (gate.ask(claim, now)) {                    // a router's call, or its asking for a promise
//       case epoch_gate::answer::taken: ...              // from now on nobody of a lower epoch, and for `lease` nobody else
//       case epoch_gate::answer::stale: ...              // a later router is known: this one has been replaced
//       case epoch_gate::answer::held: ...               // another router called a moment ago, and is not given up yet
//     }
//
// A higher epoch is taken from the router that has the promise at any time, from another one when nothing was heard of the
// first for as long as it asked for: who only can't reach a router that is well takes nothing from it. An epoch is of one
// router: at any moment a worker takes the calls of one. It forgets with its process, which then has nothing to guard.
#pragma once

#include "cluster/router_claim.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv::cluster {

class epoch_gate {
 public:
  enum class answer : std::uint8_t { taken, stale, held };

  answer ask(const router_claim& c, time_point now);
  told_promise promised(time_point now) const;

 private:
  duration left(time_point now) const;

  router_claim promised_;
  time_point heard_{};
};

}  // namespace cokv::cluster

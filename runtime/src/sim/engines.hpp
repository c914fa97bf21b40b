// The engines of simulated devices: compute, a copy engine for each direction of each link. An operation takes all that
// it needs at once and keeps them to its end; among those that wait, the more urgent goes first, then who asked first.
// What runs is never interrupted, and nobody overtakes a waiter on an engine that both need.
#pragma once

#include <cstdint>
#include <vector>

namespace cokv::detail {

struct sim_engine {
  bool busy = false;
};

class sim_engines {
 public:
  class user {
   public:
    virtual void start() = 0;  // the engines are its own, unless it gave them back meanwhile

   protected:
    ~user() = default;

   private:
    friend class sim_engines;
    std::vector<sim_engine*> held_;
  };

  void ask(user& who, int priority, std::vector<sim_engine*> needs);
  void give_back(user& who);  // or forget that it asked

 private:
  struct request {
    user* who;
    int priority;
    std::vector<sim_engine*> needs;
  };
  void serve();

  std::vector<request> waiting_;  // by priority, then in the order they came
};

}  // namespace cokv::detail

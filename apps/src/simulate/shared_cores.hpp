// The processor of a machine that several workers compute on: each step goes on the slower the more of them are under way, by what
// a profile says of so many. State of the simulation; no I/O but a timer.
//
//     shared_cores cores(time, price);
//     cores.begin(step, 0.020, [] { ... });          // 20 ms alone; later where others compute meanwhile
#pragma once

#include <functional>
#include <list>
#include <memory>

#include "cokv/runtime/clock.hpp"
#include "simulate/price.hpp"

namespace cokv::simulate {

class shared_cores : public std::enable_shared_from_this<shared_cores> {
 public:
  shared_cores(clock& time, std::shared_ptr<const price> what) : time_(time), price_(std::move(what)) {}

  // `over` is called from a handler when the step is done. Its number, for
  std::uint64_t begin(const step& s, double seconds, std::function<void()> over);
  std::uint32_t at_work() const noexcept { return static_cast<std::uint32_t>(jobs_.size()); }  // workers
  void give_up(std::uint64_t number);  // where it is not done yet: it never will be

 private:
  struct job {
    std::uint64_t number;
    step what;
    double left;  // seconds, were it alone
    double rate;  // of it, a second
    std::function<void()> over;
  };
  void go_on();  // to now: what is done by then is over
  void look();   // when the next one is done

  clock& time_;
  std::shared_ptr<const price> price_;
  std::list<job> jobs_;
  time_point at_{};
  std::uint64_t looks_ = 0, begun_ = 0;
};

}  // namespace cokv::simulate

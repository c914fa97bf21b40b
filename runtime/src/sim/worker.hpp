// In virtual time a function "on another thread" is a handler like any other. What it may do there and a handler of the
// loop may not, is told apart by whether it runs inside a sim_worker.
#pragma once

#include <utility>

namespace cokv::detail {

class sim_worker {
 public:
  sim_worker() : before_(std::exchange(inside_, true)) {}
  ~sim_worker() { inside_ = before_; }
  sim_worker(const sim_worker&) = delete;
  sim_worker& operator=(const sim_worker&) = delete;

  static bool inside() noexcept { return inside_; }

  // The loop, run from inside.
  class aside {
   public:
    aside() : before_(std::exchange(inside_, false)) {}
    ~aside() { inside_ = before_; }
    aside(const aside&) = delete;
    aside& operator=(const aside&) = delete;

   private:
    bool before_;
  };

 private:
  inline static thread_local bool inside_ = false;
  bool before_;
};

}  // namespace cokv::detail

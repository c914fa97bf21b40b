// Another process that computes steps of the same model when it is told to: what a worker beside others takes is measured by it.
//
//     busy_worker other(options);               // forks: before this process has threads
//     other.ready();                            // it has its weights
//     other.prompts();                          // it is at it when this returns
//     other.idle();
//     other.enter({.urls = urls, .stage = 1});  // a pipeline: as soon as it is
//     other.ready();                           // there; and
//     other.ready();                           // when it has left, as its leader has ended
#pragma once

#include "fit/child.hpp"
#include "fit/fit.hpp"
#include "fit/pipeline.hpp"

namespace cokv::fit {

class busy_worker {
 public:
  explicit busy_worker(const options& o);

  // Each but enter() waits until it says that it is so. Throw config_error with what it says when it can't.
  void ready() { hear(); }
  void prompts() { tell('p'); }
  void answers() { tell('a'); }
  void idle() { tell('i'); }
  void enter(const stage_place& at);  // of doors that are ports of this machine
  // Throws if it has said meanwhile that it can't, or has ended.
  void check();

 private:
  void tell(char what);
  void hear();

  child other_;
};

}  // namespace cokv::fit

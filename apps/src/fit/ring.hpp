// Workers in a ring, each a process: whoever is handed a baton computes a step and hands it on, as stages of a pipeline do. What a
// step takes that begins on an idle worker while others are at theirs is measured by it: the time that its threads wait for a
// processor is in no steady run.
//
//     auto ends = make_ring(4);                       // before there are processes; the nth one's are ends[n]
//     ring_place here(ex, ends[0], is_last);          // in each of those that make up a ring now
//     auto mine = here.run(step);                     // all but the first
//     mine = co_await here.lead(step, 2, 5ms, 1s);    // the first: two batons, for a second
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <vector>

#include "cokv/runtime/clock.hpp"

namespace cokv::fit {

// Where a process gets batons, and hands them on: to the next one, or, as the last of its ring, to the first.
struct ring_ends {
  int from = -1, next = -1, first = -1;
};
// Throws config_error.
std::vector<ring_ends> make_ring(std::uint32_t workers);

// Of steps that began on an idle worker: from when the baton was sent to the step's end.
struct hops {
  double seconds = 0;  // of all
  std::uint64_t count = 0;
  hops& operator+=(const hops& more) {
    seconds += more.seconds, count += more.count;
    return *this;
  }
};

class ring_place {
 public:
  using step = std::function<awaitable<void>()>;
  ring_place(const asio::any_io_executor& ex, ring_ends at, bool last);
  ~ring_place();

  // Until all batons have been told to be the last.
  awaitable<hops> run(const step& compute);
  // As one of them, and the one that sends batons out, so far apart, and after so long takes them back. Throws config_error where
  // none has come for as long as its patience: a worker has ended.
  awaitable<hops> lead(const step& compute, std::uint32_t batons, duration apart, duration most,
                       duration patience = std::chrono::minutes(1));

 private:
  struct baton {
    std::int64_t sent = 0;   // by the clock, which the processes of a machine share
    std::uint64_t left = 0;  // of so many batons this one's end is told; 0: it goes on
  };
  std::int64_t now() const { return time_.now().time_since_epoch().count(); }
  awaitable<baton> take();
  awaitable<void> send(baton one);
  awaitable<void> compute_for(const baton& one, const step& compute, hops& all);

  clock& time_;
  asio::posix::stream_descriptor from_, to_;
  std::int64_t idle_since_ = 0;
};

}  // namespace cokv::fit

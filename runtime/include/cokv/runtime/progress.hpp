// Progress that has to be asked for: a device whose completions the loop polls while there is something to wait for,
// and which is armed to wake the loop before it sleeps. cokv::run(ctx) does both; under a plain ctx.run() a source
// stays armed, which costs a wake-up instead of a poll.
//
//     asio::io_context ctx(1);
//     auto device = cokv::open_device(ctx.get_executor(), "cuda:0").value();   // a progress_source
//     ...
//     cokv::run(ctx);                                      // in place of ctx.run()
#pragma once

#include <cstddef>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv {

// All calls come on the context's thread.
class progress_source {
 public:
  virtual ~progress_source() = default;

  // Completes what is done by now; how much that was.
  virtual std::size_t poll() = 0;

  // Somebody waits for something that only poll() can find.
  virtual bool awaited() const = 0;

  // Sees to it that the context wakes up, and the source polls itself, when there is something to find. Called again
  // after every such wake-up; idempotent.
  virtual void arm() = 0;
};

struct run_options;

// The sources of a context.
class progress final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  explicit progress(asio::execution_context& context) : service(context) {}

  static progress& of(const asio::any_io_executor& ex);

  void add(progress_source& source);
  void remove(progress_source& source);

  // A source says that its first waiter came. Outside run() this arms it.
  void wanted(progress_source& source) {
    if (!polled_) source.arm();
  }

  bool polled() const noexcept { return polled_; }  // run() is at work

  std::size_t poll();
  bool awaited() const;
  void arm();

 private:
  friend std::size_t run(asio::io_context& ctx, run_options options);
  void shutdown() override { sources_.clear(); }

  std::vector<progress_source*> sources_;
  bool polled_ = false;
};

struct run_options {
  // How long the loop polls without finding anything, while somebody waits for what only a poll finds, before it arms
  // the sources and sleeps. About what a wake-up costs is never more than twice as dear as the better choice; 0 sleeps
  // at once, duration::max() never does.
  duration spin = std::chrono::microseconds(50);
};

// Runs the context until it is out of work or stopped; the number of handlers that ran.
std::size_t run(asio::io_context& ctx, run_options options = {});

}  // namespace cokv

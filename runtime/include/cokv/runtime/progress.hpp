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

  std::size_t poll();
  bool awaited() const;
  void arm();

 private:
  friend std::size_t run(asio::io_context& ctx);
  void shutdown() override { sources_.clear(); }

  std::vector<progress_source*> sources_;
  bool polled_ = false;
};

// Runs the context until it is out of work or stopped; the number of handlers that ran.
std::size_t run(asio::io_context& ctx);

}  // namespace cokv

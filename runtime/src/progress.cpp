#include "cokv/runtime/progress.hpp"

#include <algorithm>

namespace cokv {
namespace {

// Rounds without any progress before the loop goes to sleep: tens of microseconds, about what a wake-up costs.
constexpr int rounds_before_sleep = 64;

}  // namespace

progress& progress::of(const asio::any_io_executor& ex) {
  return asio::use_service<progress>(asio::query(ex, asio::execution::context));
}

void progress::add(progress_source& source) { sources_.push_back(&source); }

void progress::remove(progress_source& source) { std::erase(sources_, &source); }

std::size_t progress::poll() {
  std::size_t n = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) n += sources_[i]->poll();
  return n;
}

bool progress::awaited() const {
  return std::any_of(sources_.begin(), sources_.end(), [](auto* s) { return s->awaited(); });
}

void progress::arm() {
  for (std::size_t i = 0; i < sources_.size(); ++i)
    if (sources_[i]->awaited()) sources_[i]->arm();
}

std::size_t run(asio::io_context& ctx) {
  auto& sources = asio::use_service<progress>(ctx);
  struct driving {
    progress& p;
    bool before;
    explicit driving(progress& p) : p(p), before(std::exchange(p.polled_, true)) {}
    ~driving() {
      p.polled_ = before;
      if (!before) p.arm();
    }
  } here(sources);

  std::size_t handlers = 0;
  int idle_rounds = 0;
  while (!ctx.stopped()) {
    const std::size_t ran = ctx.poll(), found = sources.poll();
    handlers += ran;
    if (ran || found) {
      idle_rounds = 0;
      continue;
    }
    if (ctx.stopped()) break;
    if (sources.awaited() && ++idle_rounds < rounds_before_sleep) continue;
    sources.arm();
    handlers += ctx.run_one();
    idle_rounds = 0;
  }
  return handlers;
}

}  // namespace cokv

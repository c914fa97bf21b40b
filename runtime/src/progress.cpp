#include "cokv/runtime/progress.hpp"

#include <algorithm>
#include <optional>

namespace cokv {
namespace {

// A poll of the sources is a few loads, one of the context a system call, after which the processor's caches and guesses
// are cold for who goes on: sockets can wait this long.
constexpr int source_polls_at_once = 8, most_source_polls_a_round = 128;
constexpr duration round_of_polls = std::chrono::microseconds(1);

// Nor does who posts more and more keep the sources from being polled.
constexpr std::size_t most_handlers_a_round = 256;

std::size_t poll_some(asio::io_context& ctx) {
  std::size_t n = 0;
  while (n < most_handlers_a_round && ctx.poll_one()) ++n;
  return n;
}

std::size_t poll_for_a_round(progress& sources, clock& time) {
  const auto until = time.now() + round_of_polls;
  for (int i = 1; i < most_source_polls_a_round; ++i) {
    if (const auto found = sources.poll()) return found;
    if (i % source_polls_at_once == 0 && time.now() >= until) break;
  }
  return 0;
}

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

std::size_t run(asio::io_context& ctx, run_options options) {
  auto& sources = asio::use_service<progress>(ctx);
  auto& time = clock::of(ctx.get_executor());
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
  std::optional<time_point> idle_since;
  while (!ctx.stopped()) {
    if (!sources.awaited()) {  // the context finds everything by itself, and sleeps by one system call
      idle_since.reset();
      handlers += ctx.run_one();
      continue;
    }
    const std::size_t ran = poll_some(ctx);
    std::size_t found = sources.poll();
    handlers += ran;
    if (ctx.stopped()) break;
    const bool awaited = sources.awaited();
    if (awaited && !found && !ran) found = poll_for_a_round(sources, time);
    if (found || (awaited && ran)) {
      idle_since.reset();
      continue;
    }
    if (awaited && options.spin > duration()) {
      const auto now = time.now();
      if (!idle_since) idle_since = now;
      if (now - *idle_since < options.spin) continue;
    }
    sources.arm();
    idle_since.reset();
    // What was done before it was armed needs no wake-up.
    if (sources.poll()) continue;
    handlers += ctx.run_one();
  }
  return handlers;
}

}  // namespace cokv

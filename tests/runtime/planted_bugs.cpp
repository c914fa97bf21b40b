// One bug of each class, planted in a small copy engine, and the proof that the checks which the suites rely on catch
// it: memory freed under a copy, an operation completed twice, one never completed, wrong bytes. The same engine
// without a bug passes on every seed. Each bug shows only on some: that is what seeds are for.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <string>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/timeline.hpp"
#include "support/co_test.hpp"
#include "support/completions.hpp"
#include "support/quarantine.hpp"

using namespace cokv;
using namespace std::chrono_literals;

namespace {

enum class bug { none, freed_early, completed_twice, never_completed, wrong_bytes };

// Copies in pieces, two copies at a time. A cancelled copy that waits is dropped; one that has begun is drained before
// it completes, since nothing can stop it.
class copier {
 public:
  using handler = std::function<void(error_code)>;

  copier(sim_context& context, bug planted) : context_(context), planted_(planted) {}

  std::size_t copy(buffer dst, buffer src, handler done) {
    auto c = std::make_shared<one>();
    c->to = dst.data();
    if (planted_ != bug::freed_early) c->dst = std::move(dst);
    c->src = std::move(src);
    c->done = std::move(done);
    all_.push_back(c);
    waiting_.push_back(c);
    begin();
    return all_.size() - 1;
  }

  void cancel(std::size_t id) {
    auto c = all_[id];
    if (c->over) return;
    if (!c->begun) {
      std::erase(waiting_, c);
      return complete(c, asio::error::operation_aborted);
    }
    // Each of these says that it is over while it isn't.
    if (planted_ == bug::freed_early) return complete(c, asio::error::operation_aborted);
    if (planted_ == bug::completed_twice) return post(c, asio::error::operation_aborted);
    // Takes the last piece for an end that somebody else reports.
    if (planted_ == bug::never_completed && c->next + 1 == pieces) c->over = true;
    c->aborted = true;
  }

 private:
  static constexpr std::size_t pieces = 4, at_once = 2;
  struct one {
    std::byte* to = nullptr;
    buffer dst, src;
    handler done;
    std::size_t next = 0;
    bool begun = false, over = false, aborted = false;
  };

  void begin() {
    while (running_ < at_once && !waiting_.empty()) {
      auto c = waiting_.front();
      waiting_.pop_front();
      c->begun = true;
      ++running_;
      step(c);
    }
  }

  void step(const std::shared_ptr<one>& c) {
    context_.at(context_.now() + context_.between(1us, 3us), context_.home(), [this, c] {
      const auto n = c->src.size();
      const auto from = n * c->next / pieces, to = n * (c->next + 1) / pieces;
      std::memcpy(c->to + from, c->src.data() + from, to - from);
      // A tie of two copies is taken for the end of one of them.
      const bool early = planted_ == bug::wrong_bytes && c->next + 2 == pieces && last_piece_ == context_.now();
      last_piece_ = context_.now();
      if (++c->next < pieces && !early) return step(c);
      --running_;
      if (!c->over) complete(c, c->aborted ? error_code(asio::error::operation_aborted) : error_code());
      begin();
    });
  }

  void complete(const std::shared_ptr<one>& c, error_code ec) {
    c->over = true;
    c->dst = {};
    post(c, ec);
  }
  void post(const std::shared_ptr<one>& c, error_code ec) {
    asio::post(context_.get_executor(), [done = c->done, ec] { done(ec); });
  }

  sim_context& context_;
  const bug planted_;
  std::deque<std::shared_ptr<one>> waiting_;
  std::vector<std::shared_ptr<one>> all_;
  std::size_t running_ = 0;
  time_point last_piece_{};
};

struct verdict {
  std::size_t never = 0, twice = 0, late_writes = 0, wrong_bytes = 0;
  bool clean() const { return never + twice + late_writes + wrong_bytes == 0; }
};

std::byte truth(std::size_t copy, std::size_t at) { return std::byte((copy * 131 + at * 7) & 0x7F); }

// What a user does: copies, cancels some, frees memory as soon as it was told that it may.
verdict run(std::uint64_t seed, bug planted, bool really_free = false) {
  sim_context context(seed);
  test::quarantine memory(really_free);
  test::completions done;
  verdict v;
  copier engine(context, planted);
  constexpr std::size_t copies = 24, bytes = 64;
  std::array<buffer, copies> dst;
  for (std::size_t i = 0; i < copies; ++i) {
    context.at(time_point(context.between(0us, 60us)), context.home(), [&, i] {
      dst[i] = memory.allocate(bytes);
      auto src = memory.allocate(bytes);
      for (std::size_t b = 0; b < bytes; ++b) src.data()[b] = truth(i, b);
      const auto id = engine.copy(dst[i], std::move(src), done.expect([&, i](error_code ec) {
        for (std::size_t b = 0; !ec && b < bytes; ++b) v.wrong_bytes += dst[i].data()[b] != truth(i, b);
        dst[i] = {};
      }));
      if (context.chance(0.3))
        context.at(context.now() + context.between(0us, 10us), context.home(), [&engine, id] { engine.cancel(id); });
    });
  }
  context.run();
  v.never = done.never();
  v.twice = done.more_than_once();
  v.late_writes = memory.late_writes();
  return v;
}

// On how many of the seeds each check complains.
struct caught {
  int never = 0, twice = 0, late_writes = 0, wrong_bytes = 0, clean = 0;
};

caught over_seeds(bug planted, std::size_t count) {
  caught sum;
  for (auto seed : test::seeds(count)) {
    const auto v = run(seed, planted);
    sum.never += v.never > 0;
    sum.twice += v.twice > 0;
    sum.late_writes += v.late_writes > 0;
    sum.wrong_bytes += v.wrong_bytes > 0;
    sum.clean += v.clean();
  }
  return sum;
}

}  // namespace

TEST_CASE("planted bugs: the engine without one passes on every seed") {
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    const auto v = run(seed, bug::none);
    CHECK(v.never == 0);
    CHECK(v.twice == 0);
    CHECK(v.late_writes == 0);
    CHECK(v.wrong_bytes == 0);
  }
}

TEST_CASE("planted bugs: memory freed under a copy in flight is caught by the quarantine") {
  const auto c = over_seeds(bug::freed_early, 50);
  CHECK((c.late_writes > 0 || test::one_seed()));
  CHECK(c.twice + c.never + c.wrong_bytes == 0);
}

TEST_CASE("planted bugs: an operation completed twice is caught by counting") {
  const auto c = over_seeds(bug::completed_twice, 50);
  CHECK((c.twice > 0 || test::one_seed()));
  CHECK(c.never == 0);
}

TEST_CASE("planted bugs: an operation that is never completed is caught by the end of the run") {
  const auto c = over_seeds(bug::never_completed, 50);
  CHECK((c.never > 0 || test::one_seed()));
  CHECK(c.twice + c.late_writes + c.wrong_bytes == 0);
}

TEST_CASE("planted bugs: wrong bytes are caught by a model of truth") {
  const auto c = over_seeds(bug::wrong_bytes, 500);
  CHECK((c.wrong_bytes > 0 || test::one_seed()));
  CHECK((c.clean > 0 || test::one_seed()));  // and only on some seeds: one run would have missed it
}

// The same bug under a coroutine that waits: co_test is the judge.
TEST_CASE("planted bugs: a body that waits for what never comes is a deadlock, and says so" * doctest::should_fail()) {
  test::co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& context = ex.target<sim_context::executor_type>()->core();
        timeline copied(ex);  // holds who waits, so that a deadlocked body goes with its context
        copier engine(context, bug::never_completed);
        for (std::uint64_t i = 1; i <= 100; ++i) {
          const auto id = engine.copy(buffer::host(8), buffer::host(8), [&, i](error_code) { copied.advance(i); });
          context.at(context.now() + context.between(0us, 10us), context.home(), [&, id] { engine.cancel(id); });
          co_await copied.async_wait(i);
        }
      },
      {.real = false, .seeds = 2});
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
// With the heap in place of the quarantine: what a user's sanitizer says, in a process of its own.
TEST_CASE("planted bugs: memory freed under a copy in flight is a report of AddressSanitizer") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(ends[1], 2);
    ::close(ends[0]);
    for (std::uint64_t seed = 1; seed <= 50; ++seed) run(seed, bug::freed_early, true);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string report;
  char text[4096];
  for (ssize_t n; (n = ::read(ends[0], text, sizeof text)) > 0;) report.append(text, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status != 0);
  CHECK(report.find("heap-use-after-free") != std::string::npos);
}
#endif
#endif

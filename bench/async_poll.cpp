// What does the loop pay for streams that are not done? One poll of a source with a pinned word for every stream, a
// waiter on each, and nothing to find: for one stream, for 64, and for one on which 10,000 coroutines wait.
//
//     bench_async_poll [--rounds 2000000] [--repeat 9] [--json FILE]
//
// The words are host memory, as pinned words are to the host that reads them.
#include <atomic>
#include <memory>

#include "alternate.hpp"
#include "cokv/runtime/timeline.hpp"

namespace {

using namespace cokv;

class words final : public progress_source {
 public:
  words(asio::io_context& ctx, int streams, int waiters) : progress_(progress::of(ctx.get_executor())) {
    for (int i = 0; i < streams; ++i) {
      auto& s = *streams_.emplace_back(std::make_unique<stream>(ctx));
      for (int w = 0; w < waiters; ++w) s.line.async_wait(static_cast<std::uint64_t>(w + 1), [](error_code) {});
    }
    progress_.add(*this);
  }
  ~words() { progress_.remove(*this); }

  std::size_t poll() override {
    for (auto& s : streams_) s->line.poll();
    return 0;
  }
  bool awaited() const override { return true; }
  void arm() override {}

 private:
  struct stream {
    explicit stream(asio::io_context& ctx) : line(ctx.get_executor(), word) {}
    alignas(64) std::atomic<std::uint64_t> word{0};  // each has a line of its own, as it must where a device writes it
    timeline line;
  };

  progress& progress_;
  std::vector<std::unique_ptr<stream>> streams_;
};

bench::cost per_stream(int rounds, int streams, int waiters) {
  asio::io_context ctx(1);
  auto source = std::make_unique<words>(ctx, streams, waiters);
  auto& sources = progress::of(ctx.get_executor());
  auto cost = bench::timed(rounds, [&] {
    for (int i = 0; i < rounds; i += std::max(1, streams)) sources.poll();
  });
  source.reset();
  ctx.run();
  return cost;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string one = "one stream, one waiter, and the poll itself";
  return bench::alternate(
      argc, argv, "What does a poll cost that finds nothing, a stream with a waiter?", 2'000'000,
      {{"no stream: the poll itself", [](int n) { return per_stream(n, 0, 0); }},
       {one, [](int n) { return per_stream(n, 1, 1); }},
       {"one stream, 10,000 waiters, and the poll itself", [](int n) { return per_stream(n, 1, 10'000); }, one},
       {"one of 64 streams, a waiter each", [](int n) { return per_stream(n, 64, 1); }}});
}

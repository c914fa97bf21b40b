// What does it cost a coroutine to wait for a device? A timeline position that was reached, one that a poll finds, and
// one that another handler reaches, against one asio::post.
//
//     bench_async_wait [--rounds 200000] [--repeat 9] [--json FILE]
#include <atomic>

#include "alternate.hpp"
#include "cokv/runtime/timeline.hpp"

namespace {

using namespace cokv;

awaitable<void> one_post(asio::io_context& ctx, int rounds) {
  for (int i = 0; i < rounds; ++i) co_await asio::post(ctx.get_executor(), asio::deferred);
}

awaitable<void> reached(asio::io_context& ctx, int rounds) {
  timeline t(ctx.get_executor());
  t.advance(static_cast<std::uint64_t>(rounds));
  for (int i = 1; i <= rounds; ++i) co_await t.async_wait(static_cast<std::uint64_t>(i));
}

// Advanced by a handler of the same context: its post, the poll and the completion.
awaitable<void> advanced(asio::io_context& ctx, int rounds) {
  timeline t(ctx.get_executor());
  for (int i = 1; i <= rounds; ++i) {
    asio::post(ctx, [&t, i] { t.advance(static_cast<std::uint64_t>(i)); });
    co_await t.async_wait(static_cast<std::uint64_t>(i));
  }
}

// A word that changes without a word to anybody: what the loop's poll finds.
class polled_word final : public progress_source {
 public:
  explicit polled_word(asio::io_context& ctx)
      : progress_(progress::of(ctx.get_executor())), line_(ctx.get_executor(), word_) {
    progress_.add(*this);
  }
  ~polled_word() { progress_.remove(*this); }
  std::size_t poll() override {
    if (!waiting_) return 0;
    word_.store(waiting_, std::memory_order_release);  // the device's store, which costs the loop nothing there
    waiting_ = 0;
    line_.poll();
    return 1;
  }
  bool awaited() const override { return waiting_ != 0; }
  void arm() override {}
  auto async_wait(std::uint64_t position) {
    waiting_ = position;
    return line_.async_wait(position);
  }

 private:
  std::atomic<std::uint64_t> word_{0};
  std::uint64_t waiting_ = 0;
  progress& progress_;
  timeline line_;
};

awaitable<void> polled(asio::io_context& ctx, int rounds) {
  polled_word word(ctx);
  for (int i = 1; i <= rounds; ++i) co_await word.async_wait(static_cast<std::uint64_t>(i));
}

}  // namespace

int main(int argc, char** argv) {
  using bench::each;
  const std::string post = "asio::post, awaited";
  return bench::alternate(argc, argv, "What does it cost a coroutine to wait?", 200'000,
                          {{post, [](int n) { return each(n, one_post); }},
                           {"timeline, reached", [](int n) { return each(n, reached); }, post},
                           {"timeline, found by a poll", [](int n) { return each(n, polled); }, post},
                           {"timeline, advanced by a handler", [](int n) { return each(n, advanced); }, post}});
}

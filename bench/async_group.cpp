// What does a scope cost? with() and a task_group against make_parallel_group and wait_for_all: both start the same
// children on the same executor and go on when all have ended; the scope also keeps a verdict, cancels the rest at the
// first failure and gives each child every kind of cancellation. A body that only spawns is a plain function, as
// parallel_group has none; a body that is a coroutine is one child more, and is compared with a group of three.
//
//     bench_async_group [--rounds 50000] [--repeat 9] [--json FILE]
#include "alternate.hpp"
#include "cokv/runtime/timeline.hpp"
#include "cokv/runtime/with.hpp"

namespace {

using namespace cokv;

awaitable<void> nothing() { co_return; }
awaitable<void> one_post() { co_await asio::post(asio::deferred); }

template <auto child>
awaitable<void> scope(asio::io_context&, int rounds) {
  for (int i = 0; i < rounds; ++i)
    if (!co_await with(task_group{}, [](task_group& g) { g.spawn(child()), g.spawn(child()); })) std::abort();
}

template <auto child>
awaitable<void> scope_of_coroutine(asio::io_context&, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    auto v = co_await with(task_group{}, [](task_group& g) -> awaitable<void> {
      g.spawn(child()), g.spawn(child());
      co_return;
    });
    if (!v) std::abort();
  }
}

template <class... Operation>
auto all(Operation... operation) {
  return asio::experimental::make_parallel_group(std::move(operation)...)
      .async_wait(asio::experimental::wait_for_all(), asio::deferred);
}

template <auto child, int children>
awaitable<void> group(asio::io_context&, int rounds) {
  const auto ex = co_await asio::this_coro::executor;
  for (int i = 0; i < rounds; ++i) {
    if constexpr (children == 2)
      co_await all(co_spawn(ex, child(), asio::deferred), co_spawn(ex, child(), asio::deferred));
    else
      co_await all(co_spawn(ex, child(), asio::deferred), co_spawn(ex, child(), asio::deferred),
                   co_spawn(ex, nothing(), asio::deferred));
  }
}

awaitable<void> scope_of_operations(asio::io_context& ctx, int rounds) {
  timeline t(ctx.get_executor());
  for (int i = 0; i < rounds; ++i)
    if (!co_await with(task_group{}, [&](task_group& g) { g.spawn(t.async_wait(0)), g.spawn(t.async_wait(0)); }))
      std::abort();
}

awaitable<void> group_of_operations(asio::io_context& ctx, int rounds) {
  timeline t(ctx.get_executor());
  for (int i = 0; i < rounds; ++i) co_await all(t.async_wait(0), t.async_wait(0));
}

}  // namespace

int main(int argc, char** argv) {
  using bench::each;
  const std::string two = "parallel_group of two coroutines", three = "parallel_group of three coroutines",
                    waiting = "parallel_group of two coroutines that wait once",
                    operations = "parallel_group of two operations";
  auto many = [](auto body) { return [body](int n) { return each(n, body); }; };
  return bench::alternate(argc, argv, "What does a scope cost?", 50'000,
                          {{two, many(group<nothing, 2>)},
                           {"scope of two coroutines", many(scope<nothing>), two},
                           {waiting, many(group<one_post, 2>)},
                           {"scope of two coroutines that wait once", many(scope<one_post>), waiting},
                           {three, many(group<nothing, 3>)},
                           {"scope of two, its body a third", many(scope_of_coroutine<nothing>), three},
                           {operations, many(group_of_operations)},
                           {"scope of two operations", many(scope_of_operations), operations}});
}

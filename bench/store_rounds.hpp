// What the benches of remote caches do with a store: 512 blocks written, read and removed, `at_once` a request, each
// until it is done, on a context of one's own.
//
//     store_rounds on;
//     memory_store blocks(on.executor(), ...);
//     on.run(set(blocks, from, round));
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>

#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "remote_blocks.hpp"

namespace cokv::bench {

class store_rounds {
 public:
  asio::any_io_executor executor() { return context_.get_executor(); }

  void run(awaitable<void> body) {
    context_.restart();
    std::exception_ptr failed;
    asio::co_spawn(context_, std::move(body), [&](std::exception_ptr e) {
      failed = e;
      context_.stop();  // connections are kept, and would be waited for
    });
    cokv::run(context_);
    if (failed) std::rethrow_exception(failed);
  }

 private:
  asio::io_context context_{1};
};

// What is written stays as it is.
inline awaitable<void> set(store& to, const block_pool& from, int round, std::size_t at_once = task_blocks,
                           bool deferred = false) {
  const auto& model = from.model();
  for (std::size_t first = 0; first < all_blocks; first += at_once) {
    auto writer = co_await to.async_open_write(bench_space, model.layout(), keys_of_round(round, first, at_once),
                                               {.deferred = deferred, .stable = true});
    for (std::uint32_t layer = 0; layer < model.layers; ++layer)
      co_await writer->async_write(layer, from.layer_of(layer, first, at_once));
    co_await writer->async_commit();
  }
}

// Layer by layer, each as soon as it is there.
inline awaitable<void> get(store& from, const block_pool& into, int round, std::size_t at_once = task_blocks) {
  const auto& model = into.model();
  for (std::size_t first = 0; first < all_blocks; first += at_once) {
    auto reader = co_await from.async_open_read(bench_space, model.layout(), keys_of_round(round, first, at_once));
    for (std::uint32_t layer = 0; layer < model.layers; ++layer)
      reader->expect(layer, into.layer_of(layer, first, at_once));
    std::size_t good = 0;
    for (std::uint32_t layer = 0; layer < model.layers; ++layer) {
      auto to = into.layer_of(layer, first, at_once);
      const auto there = reader->read_now(layer, to);
      const bool wait = there.has_error() && there.error() == asio::error::would_block;
      good = wait ? co_await reader->async_read(layer, std::move(to)) : there.value();
    }
    must_be(good == at_once, "blocks are missing");
  }
}

// What was read is kept longer than what is new: the next round is to find room at once.
inline awaitable<void> remove(store& from, int round) {
  for (const auto& key : keys_of_round(round, 0, all_blocks))
    (void)co_await from.async_remove(bench_space, key, as_result);
}

}  // namespace cokv::bench

#include "cokv/kvstream/forwarded_store.hpp"

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/result.hpp"
#include "store/forwarded.hpp"

namespace cokv {
namespace {

// What runs there has all it needs with it: this context, and a coroutine of it, may end first.

auto total() { return asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation()); }

}  // namespace

shard_ref forwarded_store::home_of(const asio::any_io_executor& owner, std::size_t in_flight) {
  return shard_ref(std::make_shared<detail::shard_state>(owner, 0, in_flight));
}

forwarded_store::forwarded_store(asio::any_io_executor here, shard_ref home, store& there)
    : store(std::move(here)), home_(std::move(home)), there_(there) {
  counters_.kind = "forwarded";
}

void forwarded_store::do_match(namespace_id ns, std::vector<block_key> keys, match_options options,
                               count_handler handler) {
  static constexpr auto match = [](shard_ref home, store& there, namespace_id ns, std::vector<block_key> keys,
                                   match_options options) -> awaitable<result<std::size_t>> {
    co_await total();
    co_return co_await on(home,
                          [&there, ns, keys = std::move(keys), options]() mutable -> awaitable<result<std::size_t>> {
                            co_return co_await there.async_match(ns, std::move(keys), options, as_result);
                          });
  };
  detail::run_as_operation(get_executor(), match(home_, there_, ns, std::move(keys), options), std::move(handler));
}

void forwarded_store::do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                    write_options options, writer_handler handler) {
  static constexpr auto open = [](asio::any_io_executor here, shard_ref home, store& there, namespace_id ns,
                                  block_layout layout, std::vector<block_key> keys,
                                  write_options options) -> awaitable<result<std::unique_ptr<block_writer>>> {
    co_await total();
    const auto count = keys.size();
    auto opened = co_await on(
        home,
        [&there, home, ns, layout, keys = std::move(keys),
         options = std::move(options)]() mutable -> awaitable<result<detail::held_there<block_writer>>> {
          auto writer = co_await there.async_open_write(ns, layout, std::move(keys), std::move(options), as_result);
          if (!writer) co_return writer.error();
          co_return detail::held_there<block_writer>(home, std::move(*writer));
        });
    if (!opened) co_return opened.error();
    co_return detail::forward_writer(here, home, std::move(*opened), std::move(layout), count);
  };
  detail::run_as_operation(
      get_executor(), open(get_executor(), home_, there_, ns, std::move(layout), std::move(keys), std::move(options)),
      std::move(handler));
}

void forwarded_store::do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                   reader_handler handler) {
  static constexpr auto open = [](asio::any_io_executor here, shard_ref home, store& there, namespace_id ns,
                                  block_layout layout,
                                  std::vector<block_key> keys) -> awaitable<result<std::unique_ptr<block_reader>>> {
    co_await total();
    const auto count = keys.size();
    auto opened = co_await on(
        home, [&there, home, ns, layout, keys = std::move(keys)]() mutable -> awaitable<result<detail::opened_reader>> {
          auto reader = co_await there.async_open_read(ns, layout, std::move(keys), as_result);
          if (!reader) co_return reader.error();
          detail::opened_reader out;
          out.reader = detail::held_there<block_reader>(home, std::move(*reader));
          out.found = out.reader->found();
          out.at_once = out.reader->views_at_once();
          if (out.at_once && out.found != 0) {  // the answer brings what is asked for next
            auto views = co_await detail::view_ahead(*out.reader.get(), 0, layout.layers());
            if (!views) co_return views.error();
            out.first = std::move(*views);
          }
          co_return out;
        });
    if (!opened) co_return opened.error();
    co_return detail::forward_reader(here, home, std::move(*opened), std::move(layout), count);
  };
  detail::run_as_operation(get_executor(), open(get_executor(), home_, there_, ns, std::move(layout), std::move(keys)),
                           std::move(handler));
}

void forwarded_store::do_remove(namespace_id ns, block_key key, done_handler handler) {
  static constexpr auto remove = [](shard_ref home, store& there, namespace_id ns,
                                    block_key key) -> awaitable<error_code> {
    co_await total();
    auto done = co_await on(home, [&there, ns, key]() -> awaitable<result<void>> {
      co_return co_await there.async_remove(ns, key, as_result);
    });
    co_return done ? error_code() : done.error();
  };
  detail::run_as_operation(get_executor(), remove(home_, there_, ns, key), std::move(handler));
}

void forwarded_store::do_layout(namespace_id ns, block_key key, layout_handler handler) {
  static constexpr auto layout = [](shard_ref home, store& there, namespace_id ns,
                                    block_key key) -> awaitable<result<block_layout>> {
    co_await total();
    co_return co_await on(home, [&there, ns, key]() -> awaitable<result<block_layout>> {
      co_return co_await there.async_layout(ns, key, as_result);
    });
  };
  detail::run_as_operation(get_executor(), layout(home_, there_, ns, key), std::move(handler));
}

void forwarded_store::do_settle(done_handler handler) {
  static constexpr auto settle = [](shard_ref home, store& there) -> awaitable<error_code> {
    co_await total();
    auto done =
        co_await on(home, [&there]() -> awaitable<result<void>> { co_return co_await there.async_settle(as_result); });
    co_return done ? error_code() : done.error();
  };
  detail::run_as_operation(get_executor(), settle(home_, there_), std::move(handler));
}

}  // namespace cokv

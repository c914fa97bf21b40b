#include "cokv/kvstream/transfer_group.hpp"

#include <tuple>

namespace cokv {
namespace {

// Ends a transfer that is no coroutine.
struct flush_done : detail::operation_done {
  permit turn;
  std::shared_ptr<std::uint64_t> moved;
  std::uint64_t bytes = 0;

  void operator()(error_code ec) {
    if (!ec) *moved += bytes;
    turn.release();
    detail::operation_done::operator()(ec);
  }
};

}  // namespace

transfer_group::transfer_group(sink to, transfer_group_options options)
    : task_group(task_group_options{.limit = 2 * options.in_flight + 2}),  // one that ends is a child a little longer
      to_(std::move(to)),
      options_(options),
      executor_(to_.get_executor()),
      room_(std::make_unique<semaphore>(executor_.get(), options.in_flight)) {}

awaitable<void> transfer_group::begin(awaitable<result<transferred>> transfer) {
  run(std::move(transfer), co_await room_->async_acquire());
}

void transfer_group::run(awaitable<result<transferred>> transfer, permit turn) {
  auto body = [](awaitable<result<transferred>> moving, permit,
                 std::shared_ptr<std::uint64_t> bytes) -> awaitable<error_code> {
    auto moved = co_await std::move(moving);
    if (!moved) co_return moved.error();
    *bytes += moved->bytes;
    co_return error_code();
  };
  spawn(body(std::move(transfer), std::move(turn), bytes_));
}

awaitable<void> transfer_group::flush(buffer chunk, std::uint64_t offset, event begin_at) {
  const auto at_once = [&] { return detail::flushes_at_once(chunk, to_, offset, begin_at, options_.level); };
  if (!at_once())
    co_return co_await begin(detail::flush(std::move(chunk), to_, offset, std::move(begin_at), options_.level));
  auto turn = room_->try_acquire();
  if (!turn) {
    turn = co_await room_->async_acquire();
    if (!at_once()) {
      run(detail::flush(std::move(chunk), to_, offset, std::move(begin_at), options_.level), std::move(*turn));
      co_return;
    }
  }
  auto child = open();
  if (!child) co_return;
  const auto bytes = chunk.size();
  detail::initiate<void(error_code), detail::begun_transfer>(
      flush_done{{std::move(child)}, std::move(*turn), bytes_, bytes}, executor_,
      [&](detail::transfer_operation& op) { to_.backend()->begin_put(offset, std::move(chunk), op); });
}

awaitable<void> transfer_group::flush_alone(buffer chunk, std::uint64_t offset, event begin_at) {
  const auto bytes = chunk.size();
  const bool throwing = co_await asio::this_coro::throw_if_cancelled();
  error_code ec;
  if (detail::flushes_at_once(chunk, to_, offset, begin_at, options_.level)) {
    auto put = detail::initiate<void(error_code), detail::begun_transfer>(
        asio::as_tuple(asio::deferred), executor_,
        [&](detail::transfer_operation& op) { to_.backend()->begin_put(offset, std::move(chunk), op); });
    std::tie(ec) = co_await std::move(put);
  } else {
    ec = (co_await detail::flush(std::move(chunk), to_, offset, std::move(begin_at), options_.level)).error();
    co_await asio::this_coro::throw_if_cancelled(throwing);
  }
  if (ec) fail(ec);
  if (cancelled()) throw boost::system::system_error(asio::error::operation_aborted);
  *bytes_ += bytes;
}

awaitable<void> transfer_group::gather(kv_view from, slice what, std::uint64_t offset, event begin_at) {
  return begin(detail::gather(
      std::move(from), std::move(what), to_, offset,
      {options_.through, std::move(begin_at), options_.level, digest_algorithm::none}));  // nobody asks for its digest
}

awaitable<void> transfer_group::settled() {
  auto all = co_await room_->async_acquire(options_.in_flight, asio::deferred);
}

awaitable<error_code> transfer_group::commit() {
  co_await settled();
  if (cancelled()) co_return asio::error::operation_aborted;
  auto [ec] = co_await to_.async_commit(asio::as_tuple(asio::deferred));
  co_return ec;
}

}  // namespace cokv

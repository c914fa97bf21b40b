#include "cokv/kvstream/local_window.hpp"

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv {
namespace {

// Waiting for room is all that can be cancelled without a trace; what is enqueued runs.
awaitable<error_code> copy(stream on, std::vector<copy_op> batch, event begin) {
  if (begin.ready() && begin.status()) co_return begin.status();  // waited for, it would fail the stream for good
  if (batch.empty()) co_return error_code();
  for (bool waits = !begin.ready();;) {
    auto ec = waits ? on.wait(begin) : error_code();
    if (!ec) {
      waits = false;
      ec = on.copy_batch(batch);
    }
    if (!ec) break;
    if (ec != errc::queue_full) co_return ec;
    if (auto room = co_await on.async_room(as_result); !room) co_return room.error();
  }
  batch.clear();
  co_await asio::this_coro::throw_if_cancelled(false);
  co_return co_await detail::drained(on.record());
}

class local_sink final : public detail::sink_backend {
 public:
  local_sink(buffer memory, stream copies) : memory_(std::move(memory)), copies_(std::move(copies)) {}

  asio::any_io_executor get_executor() const override { return copies_.get_executor(); }
  std::uint64_t size() const override { return memory_.size(); }
  completion_level reach() const override { return completion_level::visible; }

  awaitable<error_code> put(std::uint64_t offset, std::vector<buffer> pieces, event begin, completion_level) override {
    std::vector<copy_op> batch;
    for (auto& piece : pieces) {
      if (piece.empty()) continue;
      const auto n = piece.size();
      batch.push_back({memory_.slice(offset, n), std::move(piece)});
      offset += n;
    }
    return copy(copies_, std::move(batch), std::move(begin));
  }

  awaitable<error_code> commit() override { co_return error_code(); }

 private:
  buffer memory_;
  stream copies_;
};

class local_source final : public detail::source_backend {
 public:
  local_source(buffer memory, stream copies) : memory_(std::move(memory)), copies_(std::move(copies)) {}

  asio::any_io_executor get_executor() const override { return copies_.get_executor(); }
  std::uint64_t size() const override { return memory_.size(); }

  awaitable<error_code> get(std::uint64_t offset, std::vector<buffer> pieces, event begin) override {
    std::vector<copy_op> batch;
    for (auto& piece : pieces) {
      if (piece.empty()) continue;
      const auto n = piece.size();
      batch.push_back({std::move(piece), memory_.slice(offset, n)});
      offset += n;
    }
    return copy(copies_, std::move(batch), std::move(begin));
  }

 private:
  buffer memory_;
  stream copies_;
};

}  // namespace

sink local_window::to() const { return sink(std::make_shared<local_sink>(memory_, copies_)); }
source local_window::from() const { return source(std::make_shared<local_source>(memory_, copies_)); }

}  // namespace cokv

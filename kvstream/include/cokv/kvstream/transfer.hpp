// Moving one contiguous chunk of KV: async_flush puts it into a sink, async_fetch gets it from a source. A sink and a
// source are linear spaces of bytes that somebody else made of memory (local_window.hpp) or of a store's blocks
// (block_window.hpp); a slice that is not contiguous goes by gather.hpp.
//
//     co_await async_flush(chunk, to, 0, after(computed));              // the copy engine waits, the host does not
//     co_await async_fetch(from, 0, chunk);
//
// |              | async_flush, async_fetch                                                                     |
// |--------------|----------------------------------------------------------------------------------------------|
// | cancellation | before it has begun (waiting for room): every kind, nothing happened. Begun: total and       |
// |              | partial let it drain and give its own result; terminal alone completes at once as            |
// |              | operation_aborted while it runs on                                                           |
// | the chunk    | referenced until its last reader or writer is done, also after terminal                      |
// | completes    | local: the chunk may be reused; what fails later fails the commits of where it was put, which |
// |              | wait for it. visible (the default): the other side has it, verified where bytes left the    |
// |              | process. durable: it survives the other side's restart                                       |
// | errors       | out_of_range; unsupported (a level the sink does not reach); the event's, stream's or        |
// |              | store's own                                                                                  |
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/event.hpp"

namespace cokv {

enum class completion_level : std::uint8_t { local, visible, durable };

// What an operation moved. The digest is of the bytes in their order, where the operation made one: XXH3-64, unless it was
// asked for another.
struct transferred {
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;
};

// Reads well at the call: the transfer begins when the event is ready, and fails with its error.
inline event after(event e) { return e; }

namespace detail {

// What a backend has begun without a coroutine. `by` and `request` are the backend's.
struct begun_transfer {
  void* by = nullptr;
  std::uint64_t request = 0;
};
using transfer_operation = operation<void(error_code), begun_transfer>;

class sink_backend {
 public:
  virtual ~sink_backend() = default;
  virtual asio::any_io_executor get_executor() const = 0;
  virtual std::uint64_t size() const = 0;
  virtual completion_level reach() const = 0;
  // The pieces lie together from `offset`. Checked: they fit. The rest of the table above is the backend's to keep.
  // Completes at `level` at the least: one that it reaches.
  virtual awaitable<error_code> put(std::uint64_t offset, std::vector<buffer> pieces, event begin,
                                    completion_level level = completion_level::visible) = 0;
  virtual awaitable<error_code> commit() = 0;
  // Whether a put of this piece has nothing to wait for but being visible. If so, begin_put() right behind it is put() without
  // a coroutine.
  virtual bool puts_at_once(const buffer&) const { return false; }
  virtual void begin_put(std::uint64_t, buffer, transfer_operation&) noexcept {}
};

class source_backend {
 public:
  virtual ~source_backend() = default;
  virtual asio::any_io_executor get_executor() const = 0;
  virtual std::uint64_t size() const = 0;
  virtual awaitable<error_code> get(std::uint64_t offset, std::vector<buffer> pieces, event begin) = 0;
  // As in a sink_backend.
  virtual bool gets_at_once(const buffer&) const { return false; }
  virtual void begin_get(std::uint64_t, buffer, transfer_operation&) noexcept {}
};

// Waits for a transfer that runs: a cancellation with total or partial in it lets it drain, terminal alone does not.
// Whoever awaits it has switched throw_if_cancelled off: a coroutine cancelled a moment before must not pass it by.
awaitable<error_code> drained(event done);

}  // namespace detail

// Where KV goes. Cheap to copy; belongs to one context.
class sink {
 public:
  explicit sink(std::shared_ptr<detail::sink_backend> backend) : backend_(std::move(backend)) {}

  asio::any_io_executor get_executor() const { return backend_->get_executor(); }
  std::uint64_t size() const { return backend_->size(); }
  completion_level reach() const { return backend_->reach(); }  // the most that a put can complete with

  // void(error_code): everything put so far becomes visible at once, where that is a step of its own (a store's
  // blocks, a link's windows), or nothing does. Where something that was put at level local has failed since, this does,
  // and so does every later one. Cancellation: as the store's async_commit.
  template <class Token = asio::deferred_t>
  auto async_commit(Token&& token = Token()) const {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [b = backend_](asio::any_completion_handler<void(error_code)> h) { commit(b, std::move(h)); });
  }

  const std::shared_ptr<detail::sink_backend>& backend() const noexcept { return backend_; }
  error_code check(std::uint64_t offset, std::uint64_t bytes, completion_level level) const;

 private:
  static void commit(std::shared_ptr<detail::sink_backend> b, asio::any_completion_handler<void(error_code)> h);
  std::shared_ptr<detail::sink_backend> backend_;
};

// Where KV comes from. Cheap to copy; belongs to one context.
class source {
 public:
  explicit source(std::shared_ptr<detail::source_backend> backend) : backend_(std::move(backend)) {}

  asio::any_io_executor get_executor() const { return backend_->get_executor(); }
  std::uint64_t size() const { return backend_->size(); }

  const std::shared_ptr<detail::source_backend>& backend() const noexcept { return backend_; }
  error_code check(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  std::shared_ptr<detail::source_backend> backend_;
};

namespace detail {

using transfer_handler = asio::any_completion_handler<void(error_code, transferred)>;
awaitable<result<transferred>> flush(buffer chunk, sink to, std::uint64_t offset, event begin, completion_level level);
awaitable<result<transferred>> fetch(source from, std::uint64_t offset, buffer chunk, event begin);
void start_flush(buffer chunk, sink to, std::uint64_t offset, event begin, completion_level level, transfer_handler h);
void start_fetch(source from, std::uint64_t offset, buffer chunk, event begin, transfer_handler h);
void start_transfer(const asio::any_io_executor& ex, awaitable<result<transferred>> body, transfer_handler h);
// Whether the flush is a put that is begun at once: see sink_backend.
bool flushes_at_once(const buffer& chunk, const sink& to, std::uint64_t offset, const event& begin,
                     completion_level level);

}  // namespace detail

// void(error_code, transferred): the chunk goes to [offset, offset + chunk.size()) of the sink.
template <class Token = asio::deferred_t>
auto async_flush(buffer chunk, sink to, std::uint64_t offset, event begin = {},
                 completion_level level = completion_level::visible, Token&& token = Token()) {
  auto ex = to.get_executor();
  return detail::initiate_erased<void(error_code, transferred)>(
      std::forward<Token>(token), ex, [chunk, to, offset, begin, level](detail::transfer_handler h) {
        detail::start_flush(chunk, to, offset, begin, level, std::move(h));
      });
}

// void(error_code, transferred): [offset, offset + chunk.size()) of the source comes into the chunk.
template <class Token = asio::deferred_t>
auto async_fetch(source from, std::uint64_t offset, buffer chunk, event begin = {}, Token&& token = Token()) {
  auto ex = from.get_executor();
  return detail::initiate_erased<void(error_code, transferred)>(
      std::forward<Token>(token), ex, [from, offset, chunk, begin](detail::transfer_handler h) {
        detail::start_fetch(from, offset, chunk, begin, std::move(h));
      });
}

}  // namespace cokv

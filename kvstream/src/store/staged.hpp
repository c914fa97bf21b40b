// What the readers and writers of a staged_store share: the staging itself, and how keys are cut into chunks.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cokv/kvstream/staged_store.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/staging_pool.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {

// A staging buffer of a writer, with the permit that leaves the last one to readers.
struct saving_buffer {
  permit turn;
  buffer memory;
};

class store_staging_state {
 public:
  store_staging_state(device of, staging_options how, staging_pool pool, stream in, stream out);

  const staging_options& options() const noexcept { return how_; }
  std::size_t available() const noexcept { return pool_ ? pool_->available() : 0; }
  error_code lost() const noexcept { return lost_; }

  // The stream to copy on, until an operation is over. Nothing comes any more of one that failed: it is replaced.
  result<stream> loads() { return usable(in_, "KV in"); }
  result<stream> saves() { return usable(out_, "KV out"); }
  // After a failure: whoever waits for a buffer of a lost device, some of which may never come back, is told.
  void look(error_code why) {
    const bool gone = why == errc::device_lost;  // streams that had nothing to do then don't say so
    (void)usable(in_, "KV in", gone), (void)usable(out_, "KV out", gone);
  }

  std::optional<buffer> try_acquire() { return pool_ ? pool_->try_acquire() : std::nullopt; }
  std::optional<saving_buffer> try_acquire_saving();
  static awaitable<result<buffer>> acquire(std::shared_ptr<store_staging_state> self);
  static awaitable<result<saving_buffer>> acquire_saving(std::shared_ptr<store_staging_state> self);

  static result<stream> make_stream(device& of, const staging_options& how, const char* name);

 private:
  result<stream> usable(stream& s, const char* name, bool failed = false);

  device device_;
  staging_options how_;
  std::optional<staging_pool> pool_;  // none once the device is lost
  semaphore saving_;
  stream in_, out_;
  error_code lost_;
};

// Neighbouring keys, whose segments of a layer fit one staging buffer.
inline std::size_t keys_a_chunk(const block_layout& layout, std::size_t buffer_bytes) {
  return buffer_bytes / *std::ranges::max_element(layout.segments);
}

template <class T>
std::vector<T> part_of(const std::vector<T>& all, std::size_t first, std::size_t count) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  return std::vector<T>(begin, begin + static_cast<std::ptrdiff_t>(count));
}

// One buffer a key, each as long as the layer's segment; in whose memory, copies and stores look at.
inline error_code check_sizes(const block_layout& layout, std::size_t keys, std::uint32_t layer,
                              const std::vector<buffer>& buffers) {
  if (layer >= layout.layers()) return errc::out_of_range;
  const bool right = buffers.size() == keys &&
                     std::ranges::all_of(buffers, [n = layout.segments[layer]](auto& b) { return b.size() == n; });
  return right ? error_code() : make_error_code(errc::invalid_argument);
}

// One after the other in a staging buffer.
inline std::vector<buffer> places_in(const buffer& staging, std::size_t count, std::size_t bytes) {
  std::vector<buffer> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) out.push_back(staging.slice(i * bytes, bytes));
  return out;
}

// For a coroutine that has switched throwing off: whether it was cancelled while nothing of it could be.
inline awaitable<bool> was_cancelled() {
  const auto state = co_await asio::this_coro::cancellation_state;
  co_return state.cancelled() != asio::cancellation_type::none;
}

// Copies that were enqueued have ended, well or not, and touch nothing any more: however the operation was cancelled.
inline awaitable<error_code> ended(event copies) {
  if (copies.ready()) co_return copies.status();
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  auto [ec] = co_await copies.async_wait(asio::as_tuple(asio::deferred));
  co_return ec;
}

// An operation of a reader or writer: one at a time, and what does not come to its end well has failed the whole.
template <class Body>
struct staged_turn {
  Body& body;
  bool over = false;

  explicit staged_turn(Body& b) : body(b) { b.busy = true; }
  staged_turn(const staged_turn&) = delete;
  ~staged_turn() {
    body.busy = false;
    if (!over) body.give_up();
  }
};

awaitable<result<std::unique_ptr<block_reader>>> open_staged_reader(std::shared_ptr<store> behind,
                                                                    std::shared_ptr<store_staging_state> through,
                                                                    namespace_id ns, block_layout layout,
                                                                    std::vector<block_key> keys);
awaitable<result<std::unique_ptr<block_writer>>> open_staged_writer(std::shared_ptr<store> behind,
                                                                    std::shared_ptr<store_staging_state> through,
                                                                    namespace_id ns, block_layout layout,
                                                                    std::vector<block_key> keys, write_options options);

}  // namespace cokv::detail

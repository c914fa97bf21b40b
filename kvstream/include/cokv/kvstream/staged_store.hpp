// A store whose blocks come from and go to memory of a device that the host can't reach: the bytes pass through pinned
// staging buffers, so that any store can be a tier behind that device. What is read counts as good only when the store
// behind has verified it and the device's copies of it have succeeded.
//
//     auto staging = cokv::store_staging::make(device, {.buffer_bytes = 8 << 20, .buffers = 4}).value();
//     cokv::staged_store host(std::make_shared<cokv::memory_store>(ex, options), staging);  // `staging` for all tiers
//     auto reader = co_await host.async_open_read(ns, g.layout(), keys);
//     std::size_t good = co_await reader->async_read(0, segments);                          // on the device
//
// The table of operations is store.hpp's, with these additions:
//
// | operation        | cancellation                         | the caller's buffers    | errors of its own          |
// |------------------|--------------------------------------|-------------------------|----------------------------|
// | async_open_write | as there                             | none                    | too_large [1]              |
// | async_open_read  | as there                             | none                    | too_large [1]              |
// | async_write      | copies that began are drained, then  | held until complete [2] | the stream's [3], closed,  |
// | async_read       | the writer or reader is failed       |                         | wrong_device [4]           |
// | async_commit     | as there                             | none                    | partial, store_full [5]    |
//
// [1] a segment larger than a staging buffer; a write of several chunks that is larger than the store's limit.
// [2] when it completes no copy touches them any more, whatever came of it: those that a cancelled one has begun are
// waited for, also when the cancellation was terminal.
// [3] device_failed, device_lost, CUDA's own. What fails so fails its writer or reader; later operations of that are
// errc::closed. The next operation gets another stream in the failed one's place. Once the device is lost the staging
// is, too: everything is errc::device_lost, and whoever waits for a buffer is told at once. A new one is made of the
// device that was opened again.
// [4] memory that the staging's device can't copy from or to.
// [5] see below.
//
// Keys are cut into chunks whose segments fit one staging buffer, by the largest segment of the layout. Each chunk has
// a reader or writer of the store behind, all of them open at once. That store has to take so many at a time (an
// http_store has so many connections), and no operation of one may wait for another one to be used or to go.
//   - Reading, chunks are opened one after another until one does not find all its keys: found() is the prefix. What
//     ends a prefix in one chunk ends it for all behind it, which are not read any more.
//   - Writing, nothing is visible before async_commit, which commits chunks one after another. Where one has no room,
//     or keeps some of its blocks alone (errc::partial), those behind it are committed all the same; any other error
//     ends it. What was kept is kept: keeps(i) and kept() tell. The error is errc::store_full when want of room was all
//     that failed, else errc::partial; nothing kept: the store's own error.
//
// The next chunk is on its way while one is copied, where staging has a buffer for it. However many readers and
// writers there are, they don't wait for each other in a circle: whoever waits for a buffer holds none. Writers leave
// one buffer to readers, unless there is only one, and copy on a stream of their own. A store that hangs keeps the
// buffers of its operations until they are cancelled: give them a deadline, as tiered_cache does.
//
// A call of which all segments are host memory goes straight to the store behind, without staging. place() gives
// nothing, expect() is no use, async_view is errc::unsupported, and write_options::stable is not passed on, since
// staging is used again. Readers and writers may outlive the store. All objects, the device too, belong to one context.
#pragma once

#include <cstddef>
#include <memory>

#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv {

namespace detail {

class store_staging_state;

}  // namespace detail

struct staging_options {
  std::size_t buffer_bytes = 8 << 20;  // one holds a layer's segments of a chunk of keys: at least the largest segment
  std::size_t buffers = 4;
};

// What stages for a device: pinned buffers, and a stream for each direction, so that loads never queue behind saves.
// Shared by all stores of the device. Cheap to copy; used from the context's thread.
class store_staging {
 public:
  // errc::invalid_argument (no buffers, or empty ones), errc::out_of_memory, what the device says to pinned memory and
  // to streams.
  static result<store_staging> make(device of, staging_options options = {});

  std::size_t buffer_bytes() const noexcept;
  std::size_t buffers() const noexcept;
  std::size_t available() const noexcept;  // buffers that nobody has now
  error_code status() const noexcept;      // errc::device_lost once its device is

  const std::shared_ptr<detail::store_staging_state>& state() const noexcept { return state_; }

 private:
  explicit store_staging(std::shared_ptr<detail::store_staging_state> state) noexcept : state_(std::move(state)) {}

  std::shared_ptr<detail::store_staging_state> state_;
};

class staged_store final : public store {
 public:
  // Throws config_error without a store.
  staged_store(std::shared_ptr<store> behind, store_staging through);

  store_info info() const override { return behind_->info(); }  // of the store behind

 protected:
  void do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) override;
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                     writer_handler handler) override;
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler handler) override;
  void do_remove(namespace_id ns, block_key key, done_handler handler) override;
  void do_layout(namespace_id ns, block_key key, layout_handler handler) override;
  void do_settle(done_handler handler) override;

 private:
  std::shared_ptr<store> behind_;
  store_staging through_;
};

}  // namespace cokv

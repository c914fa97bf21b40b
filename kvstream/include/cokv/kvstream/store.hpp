// Keyed KV blocks outside the device: in memory, in a folder, behind a cache server. A block is L segments, one a
// layer; it becomes visible when all of them are there and verified, and what is read is what was written or an error.
//
//     auto writer = co_await store.async_open_write(ns, g.layout(), keys);
//     for (std::uint32_t layer = 0; layer < g.layers(); ++layer)
//       co_await writer->async_write(layer, segments_of(layer));        // one buffer a key
//     co_await writer->async_commit();                                  // now all of them are visible
//
//     auto reader = co_await store.async_open_read(ns, g.layout(), keys);
//     std::size_t good = co_await reader->async_read(0, buffers);       // leading blocks that arrived and verified
//
// | operation        | cancellation           | the caller's buffers | completes when     | errors of its own |
// |------------------|------------------------|----------------------|--------------------|-------------------|
// | async_match      | nothing happened       | none                 | known              |                   |
// | async_open_write | no writer              | none                 | it may be written  | [1] [2] [3]       |
// | async_open_read  | no reader              | none                 | it may be read     | [1]               |
// | async_write      | the writer is failed   | held until complete  | they are reusable* | [4] store_full    |
// | async_placed     | the writer is failed   | none                 | they are taken     | [4] store_full    |
// | async_commit     | unknown: ask again     | none                 | blocks are visible | [5] store_full    |
// | async_read       | the reader is failed   | held until complete  | they are verified  | [4]               |
// | async_remove     | unknown: ask again     | none                 | it is gone         | not_found         |
// | async_settle     | the wait ends          | none                 | see there          |                   |
//
// [1] invalid_argument, too_large for what no store could take; [2] too_large, store_full for want of room;
// [3] namespace_mismatch when a key is stored with another layout, without force; [4] out_of_range (layer),
// invalid_argument (number or size of buffers, layer out of turn, no place), wrong_device (not the host's);
// [5] invalid_argument when layers are missing, closed when it was committed before; errc::partial where some blocks
// became visible (kept()). All: the system's, errc::unavailable. Every type of cancellation is taken;
// memory is not touched any more when the operation completes. * write_options::stable: they are taken later.
//
// A block that is missing, damaged or evicted is no error of async_read: it ends the prefix, so `good` is smaller.
// Blocks never change: a commit of a key that is there already keeps what is there, unless write_options::force says
// otherwise. All objects belong to one context.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"

namespace cokv {

// The most bytes that a tenant may have in a store, by name; who is not named has no such bound.
using tenant_quotas = std::map<std::string, std::uint64_t>;

struct tenant_info {
  std::string name;
  std::uint64_t used_bytes = 0;
  std::uint64_t quota_bytes = 0;  // 0: none
};

// Blocks that became visible, or are not there any more, for whoever follows a store. Told once for each key in the order
// in which it happened; a block that is replaced is removed and stored.
struct store_change {
  enum class kind { stored, removed };
  kind what;
  namespace_id ns;
  std::vector<block_key> keys;
};
using change_handler = std::function<void(const store_change&)>;

// What a store is and has done. Counters start at 0 with the object.
struct store_info {
  std::string kind;               // "memory", "file", "http", "cluster"
  std::uint64_t limit_bytes = 0;  // 0: not known
  std::uint64_t used_bytes = 0;
  std::uint64_t blocks = 0;
  // Of stores in memory: blocks that somebody has open, and bytes that can't be given up: theirs, those of writes under
  // way, and of what was removed and is still held. Both are 0 once nobody uses the store.
  std::uint64_t leased_blocks = 0;
  std::uint64_t leased_bytes = 0;
  std::uint64_t written_blocks = 0;  // became visible
  std::uint64_t written_bytes = 0;
  std::uint64_t read_segments = 0;  // verified and given
  std::uint64_t read_bytes = 0;
  std::uint64_t hits = 0;    // keys found by readers
  std::uint64_t misses = 0;  // keys that readers asked for and did not find
  std::uint64_t evicted_blocks = 0;
  std::uint64_t digest_failures = 0;  // damage found and never used
  std::uint64_t refused = 0;          // foreign, old or misnamed things found in the store's place
  std::uint64_t failed_writes = 0;    // blocks that did not become visible, deferred ones included
  std::uint64_t no_room_blocks = 0;   // of those, the ones for which the disk had no room below the limit
  std::uint64_t lent_reads = 0;       // readers of a server's blocks where they lie; of an http_store
  std::uint64_t sent_reads = 0;       // readers for which that was tried, and the blocks were sent instead
  bool direct = false;                // blocks go past the system's cache
  std::uint64_t file_bytes = 0;       // what files take, what is not wanted any more included; of stores that have some
  std::vector<tenant_info> tenants =
      {};  // by name: who has a quota, and who has something without; of stores that know
};

struct write_options {
  // async_commit completes as soon as the store has taken the bytes; they become visible later, or are dropped and
  // counted in failed_writes. The bytes on their way are bounded, so a commit may still wait.
  bool deferred = false;
  // At commit the new blocks take the place of what is stored under their keys, whatever its layout; until then that is
  // read as before, and readers that have it open keep it. Without: what is there stays.
  bool force = false;
  // On whose account the blocks are kept; empty: nobody's. http_store does not send it: a cache server knows its tenants
  // by their API keys.
  std::string tenant = {};
  // What is written stays there, unchanged, until the commit has completed or the writer is gone: a store that copies it
  // from where it lies need not have done so when async_write completes, and what fails there is told later, at the
  // latest by async_commit. Bytes that do change are errc::digest_mismatch then, or stored as they were at any moment
  // that their digest fits.
  bool stable = false;
};

struct match_options {
  // The blocks found count as used, as if they had been read: what was asked for is not what is given up next.
  bool refresh = false;
};

// Destroyed without async_commit: nothing becomes visible. One operation at a time. Who receives the bytes from somewhere
// else can have them where they belong at once, and digests them as they come:
//
//     auto into = writer->place(layer);                                 // fill them; empty: async_write instead
//     co_await writer->async_placed(layer, digests_of_what_came);
class block_writer {
 public:
  using done_handler = asio::any_completion_handler<void(error_code)>;

  explicit block_writer(asio::any_io_executor ex) : executor_(std::move(ex)) {}
  virtual ~block_writer() = default;
  block_writer(const block_writer&) = delete;
  block_writer& operator=(const block_writer&) = delete;

  const asio::any_io_executor& get_executor() const noexcept { return executor_; }

  // One buffer for each key, in their order, each of the layer's segment size. Layers come in any order, each once.
  template <asio::completion_token_for<void(error_code)> Token = asio::deferred_t>
  auto async_write(std::uint32_t layer, std::vector<buffer> segments, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), executor_, [this, layer, segments = std::move(segments)](done_handler h) mutable {
          do_write(layer, std::move(segments), std::move(h));
        });
  }

  // The memory in which the store keeps the layer's segments: one buffer a key, an empty one for a key that is stored
  // already, whose bytes nobody wants. No buffers where the store has no such memory; a writer says the same of all
  // layers. What lies there counts for nothing until async_placed; from then on it is the store's. On any thread, also
  // while an operation is under way, but a commit.
  virtual std::vector<buffer> place(std::uint32_t) { return {}; }

  // Instead of async_write: the layer's segments lie where place() said. One XXH3-64 digest a key, made by the caller of
  // the bytes that came, or none at all: the store then makes those that it keeps.
  template <asio::completion_token_for<void(error_code)> Token = asio::deferred_t>
  auto async_placed(std::uint32_t layer, std::vector<std::uint64_t> digests, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), executor_, [this, layer, digests = std::move(digests)](done_handler h) mutable {
          do_placed(layer, std::move(digests), std::move(h));
        });
  }

  // Makes all blocks visible; every layer must have been written. The writer is spent afterwards.
  template <asio::completion_token_for<void(error_code)> Token = asio::deferred_t>
  auto async_commit(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(std::forward<Token>(token), executor_,
                                                     [this](done_handler h) { do_commit(std::move(h)); });
  }

  // After errc::store_full or errc::partial from async_commit: leading blocks that became visible all the same, or will
  // where the commit is deferred. A disk may fill up under a writer.
  virtual std::size_t kept() const { return 0; }
  // The same of the block of the `i`th key: those of several nodes need not be the leading ones.
  virtual bool keeps(std::size_t i) const { return i < kept(); }

 protected:
  virtual void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) = 0;
  virtual void do_placed(std::uint32_t layer, std::vector<std::uint64_t> digests, done_handler handler);
  virtual void do_commit(done_handler handler) = 0;

 private:
  asio::any_io_executor executor_;
};

// A segment where a store has it, and the digest that was made of it when it was written, if one was.
struct segment_view {
  buffer bytes;  // holding it keeps the memory
  std::optional<std::uint64_t> digest;
  // Which block it is of, counted by the store: in one place of its memory no two had the same. 0: not counted.
  std::uint64_t life = 0;
};

// One operation at a time; layers are read in order.
class block_reader {
 public:
  using count_handler = asio::any_completion_handler<void(error_code, std::size_t)>;
  using view_handler = asio::any_completion_handler<void(error_code, std::vector<segment_view>)>;

  explicit block_reader(asio::any_io_executor ex) : executor_(std::move(ex)) {}
  virtual ~block_reader() = default;
  block_reader(const block_reader&) = delete;
  block_reader& operator=(const block_reader&) = delete;

  const asio::any_io_executor& get_executor() const noexcept { return executor_; }

  // How many of the keys, from the first, were there when it was opened: what a reader can give at most.
  virtual std::size_t found() const noexcept = 0;

  // Whether async_view shows every layer from memory that is there anyway: to ask for layers ahead of need costs nothing.
  virtual bool views_at_once() const noexcept { return false; }

  // async_view without an operation, where the views lie ready: asio::error::would_block, with no other effect, where they
  // don't (yet).
  virtual result<std::vector<segment_view>> view_now(std::uint32_t) { return error_code(asio::error::would_block); }

  // Where a layer will be read to, before its turn: a store that receives fills these buffers as bytes come, so that one
  // read goes over many layers. A hint; layers are named in order. The same buffers are given to async_read, and what
  // lies in them counts for nothing until it has said so. They are let go of with the reader, at the latest.
  virtual void expect(std::uint32_t, std::vector<buffer>) {}

  // One buffer for each key, or for each that was found, each of the layer's segment size. Gives how many leading
  // blocks arrived and verified, in this layer and all before it; it never grows. What lies in buffers from there on is
  // undefined.
  template <asio::completion_token_for<void(error_code, std::size_t)> Token = asio::deferred_t>
  auto async_read(std::uint32_t layer, std::vector<buffer> into, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, std::size_t)>(
        std::forward<Token>(token), executor_, [this, layer, into = std::move(into)](count_handler h) mutable {
          do_read(layer, std::move(into), std::move(h));
        });
  }

  // async_read without an operation, where the bytes are there to be taken: asio::error::would_block where they have to
  // be waited for; then async_read comes next, for this layer into these buffers.
  virtual result<std::size_t> read_now(std::uint32_t, const std::vector<buffer>&) {
    return error_code(asio::error::would_block);
  }

  // Instead of async_read, to pass the layer on without a copy: the segments of the leading good blocks where they lie.
  // Whoever gets the bytes compares them with the digest; here nobody has. errc::unsupported, with no other effect,
  // where segments do not lie in memory.
  template <asio::completion_token_for<void(error_code, std::vector<segment_view>)> Token = asio::deferred_t>
  auto async_view(std::uint32_t layer, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, std::vector<segment_view>)>(
        std::forward<Token>(token), executor_, [this, layer](view_handler h) { do_view(layer, std::move(h)); });
  }

 protected:
  // What view_now() says; errc::unsupported where that would block.
  virtual void do_view(std::uint32_t layer, view_handler handler);
  virtual void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) = 0;

 private:
  asio::any_io_executor executor_;
};

class store {
 public:
  using done_handler = asio::any_completion_handler<void(error_code)>;
  using count_handler = asio::any_completion_handler<void(error_code, std::size_t)>;
  using writer_handler = asio::any_completion_handler<void(error_code, std::unique_ptr<block_writer>)>;
  using reader_handler = asio::any_completion_handler<void(error_code, std::unique_ptr<block_reader>)>;
  using layout_handler = asio::any_completion_handler<void(error_code, block_layout)>;

  explicit store(asio::any_io_executor ex) : executor_(std::move(ex)) {}
  virtual ~store() = default;
  store(const store&) = delete;
  store& operator=(const store&) = delete;

  const asio::any_io_executor& get_executor() const noexcept { return executor_; }
  virtual store_info info() const = 0;

  // How many of the keys, from the first, are stored whole.
  template <asio::completion_token_for<void(error_code, std::size_t)> Token = asio::deferred_t>
  auto async_match(namespace_id ns, std::vector<block_key> keys, Token&& token = Token()) {
    return async_match(ns, std::move(keys), match_options(), std::forward<Token>(token));
  }
  template <asio::completion_token_for<void(error_code, std::size_t)> Token = asio::deferred_t>
  auto async_match(namespace_id ns, std::vector<block_key> keys, match_options options, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, std::size_t)>(
        std::forward<Token>(token), executor_, [this, ns, keys = std::move(keys), options](count_handler h) mutable {
          do_match(ns, std::move(keys), options, std::move(h));
        });
  }

  template <asio::completion_token_for<void(error_code, std::unique_ptr<block_writer>)> Token = asio::deferred_t>
  auto async_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options = {},
                        Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, std::unique_ptr<block_writer>)>(
        std::forward<Token>(token), executor_,
        [this, ns, layout = std::move(layout), keys = std::move(keys),
         options = std::move(options)](writer_handler h) mutable {
          do_open_write(ns, std::move(layout), std::move(keys), std::move(options), std::move(h));
        });
  }

  // The reader keeps what it found from being evicted under it. A block of another layout counts as not there.
  template <asio::completion_token_for<void(error_code, std::unique_ptr<block_reader>)> Token = asio::deferred_t>
  auto async_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, std::unique_ptr<block_reader>)>(
        std::forward<Token>(token), executor_,
        [this, ns, layout = std::move(layout), keys = std::move(keys)](reader_handler h) mutable {
          do_open_read(ns, std::move(layout), std::move(keys), std::move(h));
        });
  }

  template <asio::completion_token_for<void(error_code)> Token = asio::deferred_t>
  auto async_remove(namespace_id ns, block_key key, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), executor_, [this, ns, key](done_handler h) { do_remove(ns, key, std::move(h)); });
  }

  // The layout of a stored block, for those who know its name alone. errc::not_found; errc::unsupported where the store
  // cannot say.
  template <asio::completion_token_for<void(error_code, block_layout)> Token = asio::deferred_t>
  auto async_layout(namespace_id ns, block_key key, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, block_layout)>(
        std::forward<Token>(token), executor_, [this, ns, key](layout_handler h) { do_layout(ns, key, std::move(h)); });
  }

  // When no deferred commit is under way any more: each has become visible, or was dropped and counted. For whoever
  // ends the process. Cancelling it ends the wait alone.
  template <asio::completion_token_for<void(error_code)> Token = asio::deferred_t>
  auto async_settle(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(std::forward<Token>(token), executor_,
                                                     [this](done_handler h) { do_settle(std::move(h)); });
  }

 protected:
  virtual void do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) = 0;
  virtual void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                             writer_handler handler) = 0;
  virtual void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                            reader_handler handler) = 0;
  virtual void do_remove(namespace_id ns, block_key key, done_handler handler) = 0;
  virtual void do_layout(namespace_id ns, block_key key, layout_handler handler);
  virtual void do_settle(done_handler handler);

 private:
  asio::any_io_executor executor_;
};

}  // namespace cokv

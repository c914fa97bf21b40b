// The write of some blocks into files: layer by layer under temporary names, then a header, a sync and a name for each.
// On a disk that is full the last blocks make room for the first.
#pragma once

#include <algorithm>
#include <numeric>

#include "cokv/kvstream/digest.hpp"
#include "store/file_store_state.hpp"

namespace cokv::detail {

// It outlives its block_writer: a deferred commit goes on, and what was given up cleans up after itself once nothing
// writes any more.
struct write_job : std::enable_shared_from_this<write_job> {
  struct slot {
    std::string path;  // of the temporary file, then of the block
    block_file about;
    file open;
    permit stays_open;
    bool made = false;      // there is a file to remove if this fails
    bool unsynced = false;  // what a failed sync left of it nobody knows
  };

  write_job(std::shared_ptr<file_store::state> s, namespace_id n, std::vector<block_key> k)
      : store(std::move(s)), ns(n), keys(std::move(k)), kept(keys.size()), slot_of(keys.size(), none), present(store) {}

  static constexpr std::size_t none = ~std::size_t{0};

  std::shared_ptr<file_store::state> store;
  namespace_id ns;
  std::vector<block_key> keys;
  std::size_t kept;  // of them, those before the first that was given up for want of room
  std::shared_ptr<const block_layout> layout;
  std::uint32_t alignment = 1;
  std::vector<std::size_t> slot_of;  // none where the key is there already
  std::vector<slot> slots;
  std::vector<bool> written;
  file_pins present;
  reservation room;
  error_code failed;
  bool force = false;  // takes the place of what is there
  bool busy = false;
  bool over = false;       // committed, or given up
  bool abandoned = false;  // the writer is gone: give up when not busy

  // An operation on the job; whatever ends it, exception and destruction included, the job is not busy afterwards.
  class turn {
   public:
    explicit turn(std::shared_ptr<write_job> job) : job_(std::move(job)) { job_->busy = true; }
    turn(const turn&) = delete;
    ~turn() {
      job_->busy = false;
      if (job_->abandoned) job_->give_up();
    }

   private:
    std::shared_ptr<write_job> job_;
  };

  void abandon() {
    abandoned = true;
    if (!busy) give_up();
  }

  void give_up() {
    if (std::exchange(over, true)) return;
    kept = 0;
    store->counters.failed_writes += slots.size();
    for (auto& s : slots) {
      s.open.close();
      s.stays_open.release();
      if (s.made) store->remove_later(s.path);
    }
    slots.clear();
    room.release();
  }

  // The disk is full: of the blocks that are written here only the first `n` go on.
  awaitable<error_code> cut_to(std::size_t n) {
    auto removed = std::make_shared<semaphore>(store->ex, 0);
    std::size_t files = 0;
    for (auto i = n; i < slots.size(); ++i) {
      auto& s = slots[i];
      s.open.close();
      if (!s.made) continue;
      store->remove_later(s.path, removed);
      ++files;
    }
    const auto gone = slots.size() - n;
    slots.resize(n);
    leave_out_from(n);
    store->counters.failed_writes += gone;
    store->counters.no_room_blocks += gone;
    room.give_back(gone * block_file_bytes(*layout, alignment));
    store->disk_is_full();
    auto [ec, all] = co_await removed->async_acquire(files, as_tuple());  // then there is room for the others
    co_return ec;
  }

  // No key has a slot from `n` on.
  void leave_out_from(std::size_t n) {
    for (std::size_t i = keys.size(); i-- > 0;) {
      if (slot_of[i] == none || slot_of[i] < n) continue;
      slot_of[i] = none;
      kept = i;
    }
  }

  awaitable<error_code> open_slot(slot& s) {
    auto mode = s.made ? open_mode::write : open_mode::create;
    s.made = true;  // from here on there may be a file
    auto [ec, f] = co_await store->open_block(s.path, mode);
    s.open = std::move(f);
    if (!ec && s.stays_open.count() == 0)
      if (auto p = store->open_files.try_acquire()) s.stays_open = std::move(*p);
    co_return ec;
  }

  void rest(slot& s) {
    if (s.stays_open.count() == 0) s.open.close();
  }

  awaitable<error_code> write_segment(std::uint32_t layer, std::size_t index, buffer from) {
    auto [wait_ec, admitted] = co_await store->admit();
    if (wait_ec) co_return wait_ec;
    auto& s = slots[index];
    if (!s.open.is_open())
      if (auto ec = co_await open_slot(s)) co_return ec;
    if (s.about.digest != digest_algorithm::none) s.about.digests[layer] = digest_of(from.bytes());
    auto ec =
        co_await write_whole(s.open, store->staging, s.about.segment_offset(layer), from.bytes(), s.about.alignment);
    rest(s);
    co_return ec;
  }

  awaitable<error_code> write(std::uint32_t layer, std::vector<buffer> segments) {
    if (over) co_return errc::closed;
    if (failed) co_return failed;
    if (auto ec = check_buffers(*layout, keys.size(), layer, segments)) co_return ec;
    if (written[layer]) co_return errc::invalid_argument;
    std::vector<std::size_t> todo, again;
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (slot_of[i] != none) todo.push_back(i);
    failed = asio::error::operation_aborted;  // unless this comes to its end
    for (;;) {
      auto write_one = [&](std::size_t i) -> awaitable<error_code> {
        auto ec = as_store_error(co_await write_segment(layer, slot_of[todo[i]], segments[todo[i]]));
        if (ec != errc::store_full) co_return ec;
        again.push_back(todo[i]);
        co_return error_code();
      };
      auto ec = co_await for_each_index(todo.size(), store->options.max_operations, write_one);
      if (!ec && again.empty()) break;
      if (!ec && slots.size() == 1) ec = errc::store_full;
      if (!ec) ec = co_await cut_to(slots.size() - 1);
      if (ec) co_return failed = ec;
      todo = std::exchange(again, {});
      std::erase_if(todo, [&](std::size_t i) { return slot_of[i] == none; });
    }
    written[layer] = true;
    co_return failed = error_code();
  }

  awaitable<error_code> settle(slot& s) {
    auto [wait_ec, admitted] = co_await store->admit();
    if (wait_ec) co_return wait_ec;
    if (!s.open.is_open())
      if (auto ec = co_await open_slot(s)) co_return ec;
    auto head = encode_block_file(s.about);
    if (auto ec = co_await write_whole(s.open, store->staging, 0, head, block_file_page)) co_return ec;
    auto [sync_ec] = co_await s.open.async_sync(as_tuple());
    s.open.close();
    s.stays_open.release();
    s.unsynced = bool(sync_ec);
    co_return sync_ec;
  }

  // Headers may find no room that the data before them had: as in write(), the last blocks go for the first.
  awaitable<error_code> settle_all() {
    std::vector<std::size_t> todo(slots.size()), again;
    std::iota(todo.begin(), todo.end(), std::size_t{0});
    for (;;) {
      auto keep = slots.size();
      auto settle_one = [&](std::size_t i) -> awaitable<error_code> {
        auto ec = as_store_error(co_await settle(slots[todo[i]]));
        if (ec != errc::store_full) co_return ec;
        if (slots[todo[i]].unsynced)
          keep = std::min(keep, todo[i]);
        else
          again.push_back(todo[i]);
        co_return error_code();
      };
      if (auto ec = co_await for_each_index(todo.size(), store->options.max_operations, settle_one)) co_return ec;
      if (!again.empty()) keep = std::min(keep, slots.size() - 1);
      if (keep == 0) co_return errc::store_full;
      if (keep < slots.size())
        if (auto ec = co_await cut_to(keep)) co_return ec;
      todo = std::exchange(again, {});
      std::erase_if(todo, [&](std::size_t i) { return i >= keep; });
      if (todo.empty()) co_return error_code();
    }
  }

  awaitable<error_code> show(slot& s) {
    auto path = store->namespace_directory(ns) + "/" + block_file_name(s.about.id.key, store->next_serial++);
    auto [ec] = co_await store->files.async_rename(s.path, path, as_tuple());
    if (!ec) s.path = path;
    co_return ec;
  }

  // All blocks are whole and synced before the first has its name.
  awaitable<error_code> place() {
    if (slots.empty()) co_return error_code();
    if (auto ec = co_await settle_all()) co_return ec;
    auto directory = store->namespace_directory(ns);
    for (;;) {
      auto [made_ec] = co_await store->files.async_make_directories(directory, as_tuple());
      if (!made_ec) break;
      if (as_store_error(made_ec) != errc::store_full || slots.size() == 1) co_return made_ec;
      if (auto ec = co_await cut_to(slots.size() - 1)) co_return ec;
    }
    const auto width = store->options.max_operations;
    if (auto ec = co_await for_each_index(slots.size(), width, [&](std::size_t i) { return show(slots[i]); }))
      co_return ec;
    auto [ec] = co_await store->files.async_sync_directory(directory, as_tuple());
    if (ec) co_return ec;
    auto [parent_ec] = co_await store->files.async_sync_directory(store->blocks_directory(), as_tuple());
    co_return parent_ec;
  }

  awaitable<error_code> commit() {
    failed = asio::error::operation_aborted;  // unless this comes to its end
    failed = as_store_error(co_await place());
    if (failed) {
      give_up();
      co_return failed;
    }
    over = true;
    room.release();
    // From the last: of blocks that came together, those at the end of the prefix are given up first.
    for (auto i = slots.size(); i-- > 0;) {
      auto& s = slots[i];
      if (auto there = store->find(s.about.id); there && force) {
        store->drop(there);
      } else if (there) {
        store->remove_later(s.path);  // another writer was first
        continue;
      }
      auto e = std::make_shared<file_entry>();
      e->id = s.about.id;
      e->path = s.path;
      e->layout = layout;
      e->room = reservation(store->used, s.about.file_bytes());
      store->insert(std::move(e));
      store->counters.written_blocks += 1;
      store->counters.written_bytes += layout->bytes();
    }
    slots.clear();
    co_return all_or_full();
  }

  error_code all_or_full() const { return kept == keys.size() ? error_code() : make_error_code(errc::store_full); }
};

}  // namespace cokv::detail

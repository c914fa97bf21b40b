// The write of some blocks into the log: extents are taken first, layers come into them, and then entries say what is
// there. On a disk that is full the last blocks make room for the first.
#pragma once

#include <algorithm>

#include "cokv/kvstream/digest.hpp"
#include "store/file_store_state.hpp"

namespace cokv::detail {

// It outlives its block_writer: a deferred commit goes on, and what was given up cleans up after itself once nothing
// writes any more.
struct write_job : std::enable_shared_from_this<write_job> {
  // Blocks of one extent. A key's place in it is its place in `keys`.
  struct part {
    file_store::state::extent in;
    log_extent extent;
    std::vector<std::size_t> keys;       // of the job's, in their order
    std::vector<std::uint64_t> digests;  // keys x layers
    std::size_t whole = 0;               // of the keys, from the first, those that go on
    std::uint64_t unwritten = 0;
    bool entered = false;
    error_code failed;
  };
  struct run {
    part* of;
    std::size_t first, count;
  };

  write_job(std::shared_ptr<file_store::state> s, namespace_id n, std::vector<block_key> k)
      : store(std::move(s)), ns(n), keys(std::move(k)), kept(keys.size()), present(store) {}

  std::shared_ptr<file_store::state> store;
  namespace_id ns;
  std::vector<block_key> keys;
  std::size_t kept;  // of them, those before the first that was given up for want of room
  std::shared_ptr<const block_layout> layout;
  std::vector<part> parts;  // in the order of their keys
  std::vector<bool> written;
  file_holds present;
  reservation room;          // for entries
  log_quotas::charge quota;  // what is being written of its tenant's
  digest_algorithm digest = digest_algorithm::xxh3_64;
  std::string tenant;
  error_code failed;
  bool force = false;  // takes the place of what is there
  bool busy = false;
  bool entered = false;    // from here on the entries' end is the job's
  bool over = false;       // committed, or given up
  bool abandoned = false;  // the writer is gone: give up when not busy
  std::size_t entries = 0;
  semaphore all_entered{store->ex, 0};

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

  stored_id id_of(std::size_t key) const { return {ns, keys[key]}; }

  void abandon() {
    abandoned = true;
    if (!busy) give_up();
  }

  void give_up() {
    if (entered || std::exchange(over, true)) return;
    kept = 0;
    for (const auto& p : parts) store->counters.failed_writes += p.whole;
    close();
  }

  void close() {
    over = true;
    room.release();
    quota.release();
    for (auto& p : parts) {
      has_been_written(p, p.unwritten);
      *store->writing -= p.extent.bytes();
      // From the last: each may give back its extent then.
    }
    while (!parts.empty()) {
      auto p = std::move(parts.back());
      parts.pop_back();
      store->close_extent(p.in, p.entered ? 0 : p.extent.bytes());
    }
    store->enter_given_up_later();
  }

  void has_been_written(part& p, std::uint64_t bytes) {
    bytes = std::min(bytes, p.unwritten);
    p.unwritten -= bytes;
    *store->unwritten -= bytes;
  }

  // The disk is full: the blocks from this one on are given up.
  void cut(const part& at, std::size_t index) {
    bool behind = false;
    for (auto& p : parts) {
      const auto n = behind ? 0 : &p == &at ? std::min(index, p.whole) : p.whole;
      if (n < p.whole) {
        kept = std::min(kept, p.keys[n]);
        store->counters.failed_writes += p.whole - n;
        store->counters.no_room_blocks += p.whole - n;
      }
      p.whole = n;
      behind = behind || &p == &at;
    }
    store->disk_is_full();
  }

  bool nothing_left() const {
    return std::all_of(parts.begin(), parts.end(), [](const part& p) { return p.whole == 0; });
  }

  awaitable<error_code> write_run_of(std::uint32_t layer, run r, const std::vector<buffer>& segments) {
    auto& p = *r.of;
    if (r.first >= p.whole) co_return error_code();
    auto [wait_ec, admitted] = co_await store->admit();
    if (wait_ec) co_return wait_ec;
    std::vector<asio::const_buffer> pieces;
    for (auto i = r.first; i < r.first + r.count; ++i) {
      const auto& from = segments[p.keys[i]];
      pieces.emplace_back(from.data(), from.size());
      if (digest != digest_algorithm::none) p.digests[i * layout->layers() + layer] = digest_of(from.bytes());
    }
    co_return co_await write_run(*p.in.in->open, store->staging,
                                 p.extent.segment_at(layer, static_cast<std::uint32_t>(r.first)),
                                 p.extent.stride(layer), std::move(pieces), p.extent.alignment);
  }

  awaitable<error_code> write(std::uint32_t layer, std::vector<buffer> segments) {
    constexpr std::uint64_t run_bytes = std::uint64_t{1} << 20;
    if (over || entered) co_return errc::closed;
    if (failed) co_return failed;
    if (auto ec = check_buffers(*layout, keys.size(), layer, segments)) co_return ec;
    if (written[layer]) co_return errc::invalid_argument;
    failed = asio::error::operation_aborted;  // unless this comes to its end
    std::vector<run> runs;
    for (auto& p : parts) {
      const auto at_once = static_cast<std::size_t>(std::max<std::uint64_t>(run_bytes / p.extent.stride(layer), 1));
      for (std::size_t i = 0; i < p.whole; i += at_once) runs.push_back({&p, i, std::min(at_once, p.whole - i)});
    }
    auto write_one = [&](std::size_t i) -> awaitable<error_code> {
      auto ec = as_store_error(co_await write_run_of(layer, runs[i], segments));
      if (ec != errc::store_full) co_return ec;
      cut(*runs[i].of, runs[i].first);
      co_return nothing_left() ? ec : error_code();
    };
    if (auto ec = co_await for_each_index(runs.size(), store->options.max_operations, write_one)) co_return failed = ec;
    for (auto& p : parts) has_been_written(p, p.extent.stride(layer) * p.extent.places);
    written[layer] = true;
    co_return failed = error_code();
  }

  // A part's entry is there, or not.
  void part_entered(part& p, const log_record& record, error_code ec, std::uint64_t at, std::uint64_t sequence) {
    p.failed = as_store_error(ec);
    std::vector<stored_id> named;
    for (std::size_t i = 0; i < p.whole; ++i) named.push_back(id_of(p.keys[i]));
    if (ec) {
      store->counters.failed_writes += record.blocks.size();
      if (p.failed == errc::store_full) store->counters.no_room_blocks += record.blocks.size();
      kept = std::min(kept, p.keys[record.blocks.front().place]);
      failed = p.failed;
    } else {
      // What was there may come back with its own file, when ours has gone already.
      for (const auto& m : record.blocks)
        if (force && store->book.find({ns, m.key})) enter_replaced({ns, m.key}, p, sequence - 1);
      const auto body = log_record_bytes(layout->layers(), record.blocks.size(), tenant.size()) - log_entry_head;
      quota.give_back(record.blocks.size() * log_block_bytes(*layout, p.extent.alignment));
      store->book.insert(make_log_group(record, p.in.in->serial, at, body, sequence));
      store->counters.written_blocks += record.blocks.size();
      store->counters.written_bytes += record.blocks.size() * layout->bytes();
    }
    store->unclaim(named);
    one_is_over();
  }

  void enter_replaced(const stored_id& id, part& p, std::uint64_t sequence) {
    ++entries;
    store->enter(p.in.in, {.kind = log_kind::removal,
                           .body = encode_log_body(log_removal{id, store->next_serial - 1}),
                           .data_first = false,
                           .sequence = sequence,
                           .done = [self = shared_from_this()](error_code ec, std::uint64_t, std::uint64_t) {
                             if (ec) self->failed = as_store_error(ec);
                             self->one_is_over();
                           }});
  }

  void one_is_over() {
    if (--entries > 0) return;
    close();
    all_entered.release();
  }

  void enter(part& p) {
    auto record = std::make_shared<log_record>();
    record->ns = ns;
    record->extent = p.extent;
    record->digest = digest;
    record->tenant = tenant;
    const auto layers = layout->layers();
    for (std::size_t i = 0; i < p.whole; ++i) {
      if (!force && store->book.find(id_of(p.keys[i]))) continue;  // another writer was first
      record->blocks.push_back({keys[p.keys[i]], static_cast<std::uint32_t>(i)});
      const auto from = p.digests.begin() + static_cast<std::ptrdiff_t>(i * layers);
      record->digests.insert(record->digests.end(), from, from + layers);
    }
    if (record->blocks.empty()) {
      std::vector<stored_id> named;
      for (std::size_t i = 0; i < p.whole; ++i) named.push_back(id_of(p.keys[i]));
      return store->unclaim(named);
    }
    p.entered = true;
    ++entries;
    auto body = encode_log_body(*record);
    store->enter(p.in.in, {.kind = log_kind::record,
                           .body = std::move(body),
                           .data_first = digest == digest_algorithm::none,
                           .sequence = 0,
                           .done = [self = shared_from_this(), &p, record](error_code ec, std::uint64_t at,
                                                                           std::uint64_t sequence) {
                             self->part_entered(p, *record, ec, at, sequence);
                           }});
  }

  awaitable<error_code> commit() {
    failed = asio::error::operation_aborted;  // unless this comes to its end
    std::vector<stored_id> named;
    for (const auto& p : parts)
      for (std::size_t i = 0; i < p.whole; ++i) named.push_back(id_of(p.keys[i]));
    if (auto ec = co_await store->claim(named)) {
      give_up();
      co_return ec;
    }
    failed = error_code();
    entered = true;
    entries = 1;  // this one
    for (auto& p : parts) enter(p);
    one_is_over();
    auto [ec, all] = co_await all_entered.async_acquire(1, as_tuple());
    if (ec) co_return ec;
    // A name that came back with its file would undo what was just entered.
    if (!failed && force) failed = co_await store->sync_names();
    co_return failed ? failed : all_or_full();
  }

  error_code all_or_full() const { return kept == keys.size() ? error_code() : make_error_code(errc::store_full); }
};

}  // namespace cokv::detail

// What a file store's parts share: the book of what lies where, the two files that are written, room, and the bounds on
// file operations. What a log's files are is told by log_entry.hpp, what is given up by log_book.hpp.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <unordered_map>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/file.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/with.hpp"
#include "store/file_pieces.hpp"
#include "store/log_book.hpp"
#include "store/log_tail.hpp"

namespace cokv {

namespace detail {

std::shared_ptr<const log_group> make_log_group(const log_record& r, std::uint64_t serial, std::uint64_t entry_at,
                                                std::size_t body_bytes, std::uint64_t sequence);

// f(i) for every i below n, `width` at a time; the first failure cancels the rest.
template <class F>
awaitable<error_code> for_each_index(std::size_t n, std::size_t width, F f) {
  if (n == 1) co_return co_await f(0);
  std::size_t next = 0;
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t w = 0; w < std::min(width, n); ++w)
      group.spawn([&]() -> awaitable<error_code> {
        while (next < n)
          if (auto ec = co_await f(next++)) co_return ec;
        co_return error_code();
      });
    co_return;
  });
  co_return v.error();
}

inline auto as_tuple() { return asio::as_tuple(asio::deferred); }

}  // namespace detail

struct file_store::state : std::enable_shared_from_this<file_store::state> {
  state(asio::any_io_executor e, file_store_options o);

  // --- files (file_log.cpp)
  std::string log_directory() const { return options.directory + "/log"; }
  std::string path_of(std::uint64_t serial) const { return log_directory() + "/" + detail::log_file_name(serial); }
  std::string lock_path() const { return options.directory + "/lock"; }

  // One of the operations on files that may go on at a time; without a turn of the loop where nobody waits.
  awaitable<std::tuple<error_code, permit>> admit();
  // Past the system's cache where that was asked for and can be.
  awaitable<std::tuple<error_code, file>> open_file(std::string path, open_mode mode);
  // For reading; kept open for the next one, as many as may be.
  awaitable<std::tuple<error_code, std::shared_ptr<file>>> open_log(std::uint64_t serial);
  // Of the segments that are written from now on.
  static std::uint32_t alignment(bool past_the_cache) { return past_the_cache ? detail::log_page : 1; }
  std::uint32_t alignment() const { return alignment(direct); }
  std::uint64_t segment_bytes();
  std::uint32_t chunk_bytes();

  struct extent {
    std::shared_ptr<detail::log_tail> in;
    std::uint64_t at = 0;
  };
  // Room in a file of a row, taken from what is reserved; the file is held until close_extent(), and the extent given
  // back then if nothing was entered and nothing came behind it.
  awaitable<std::tuple<error_code, extent>> open_extent(bool carried, std::uint64_t bytes, detail::reservation& room);
  void close_extent(const extent& e, std::uint64_t unused_bytes);
  // `done` is called once, unless the context goes down; never from within.
  void enter(const std::shared_ptr<detail::log_tail>& to, detail::log_tail::entry e);
  // Writes removals, into whichever file is written.
  awaitable<error_code> enter_removals(std::span<const detail::log_book::undone> removals);
  void retire(bool carried);  // the next extent of the row is in another file
  void retire_file(std::uint64_t serial) {
    for (bool row : {false, true})
      if (tails_[row] && tails_[row]->serial == serial) retire(row);
  }

  // --- names under which something is being entered or removed: one at a time
  awaitable<error_code> claim(std::vector<detail::stored_id> ids);
  void unclaim(std::span<const detail::stored_id> ids);

  // --- room (file_room.cpp)
  std::uint64_t used() const { return book.used() + *reserved; }
  // The bytes that files may take: the limit, or less where the disk was found full before it.
  std::uint64_t limit();
  std::uint64_t budget() { return limit() - limit() / 16; }  // the rest is the cleaner's
  bool disk_was_full() const { return disk_limit_ < options.limit_bytes; }
  std::uint64_t disk_room() const;
  void disk_is_full();
  // So many blocks of a layout and a tenant, at most; and their parts, each in one entry and no longer than a file.
  std::uint64_t bytes_for(const block_layout& layout, std::size_t blocks, const std::string& tenant);
  std::size_t blocks_a_part(const block_layout& layout, const std::string& tenant);
  // Room for as many bytes, taken; waits until files that had to go are gone.
  awaitable<std::tuple<error_code, detail::reservation>> make_room(std::uint64_t bytes);
  void clean_later();  // if there is something to clean or remove
  // Waits for deferred commits, and until nothing goes on behind them.
  static awaitable<error_code> settle(std::shared_ptr<state> self);
  // Names that are gone are gone for good.
  awaitable<error_code> sync_names();

  // --- quotas (file_quotas.cpp)
  // Takes what a tenant is going to write, from its quota if it has one: its own blocks give way. errc::store_full, and
  // then none does.
  result<detail::log_quotas::charge> take_quota(const std::string& tenant, std::uint64_t bytes);
  void set_quotas(const tenant_quotas& quotas);
  // Writes down what went for a quota, where nothing else is entered with which it would go.
  awaitable<error_code> enter_given_up();
  void enter_given_up_later();

  awaitable<error_code> remove(detail::stored_id id);
  std::shared_ptr<const block_layout> share(const namespace_id& ns, std::shared_ptr<const block_layout> layout);
  void lose(std::uint64_t serial);  // its file is not there any more
  void lose(const std::shared_ptr<const detail::log_group>& g);

  // Builds the book from what is in the folder (file_recovery.cpp).
  awaitable<error_code> recover();
  // An entry as it lies on the disk, verified.
  awaitable<result<detail::log_record>> read_record(file& f, const detail::log_group& g);

  asio::any_io_executor ex;
  file file_lock;  // held as long as anything of this store may touch the folder
  file_store_options options;
  file_system& files;
  semaphore operations;
  semaphore deferred;
  detail::staging_pieces staging;
  bool direct;  // until the file system says no
  detail::log_book book;
  std::shared_ptr<std::uint64_t> reserved = std::make_shared<std::uint64_t>(0);
  std::shared_ptr<std::uint64_t> writing = std::make_shared<std::uint64_t>(0);    // extents that are not entered yet
  std::shared_ptr<std::uint64_t> unwritten = std::make_shared<std::uint64_t>(0);  // of them, what is not written yet
  std::map<namespace_id, std::shared_ptr<const block_layout>> layouts;  // one shared by most blocks of a namespace
  std::uint64_t next_serial = 1;
  std::uint64_t next_sequence = 1;
  // Removals of what was given up for a quota, in the order of their sequences: they go with whatever is entered next, or
  // by themselves.
  std::vector<detail::log_book::undone> given_up;
  store_info counters;

 private:
  struct handle {
    std::shared_ptr<file> open;
    std::uint64_t used = 0;
  };
  struct request {
    std::uint64_t bytes = 0;
    std::shared_ptr<semaphore> answered;
    bool wanted = true;
    error_code failed;
    detail::reservation room;
  };
  struct found;
  struct said;

  awaitable<result<std::shared_ptr<detail::log_tail>>> make_tail(bool carried, detail::reservation& room);
  static awaitable<void> run_entries(std::shared_ptr<state> self, detail::queue_owner owner);
  awaitable<error_code> write_batch(detail::log_tail& to, std::vector<detail::log_tail::entry>& batch,
                                    std::vector<std::uint64_t>& places);
  void finish(const std::shared_ptr<detail::log_tail>& t);
  static awaitable<void> run_given_up(std::shared_ptr<state> self);
  void one_less_behind();  // and who waits for that looks again
  static awaitable<void> write_seal(std::shared_ptr<state> self, std::shared_ptr<detail::log_tail> t);
  void vacate(std::uint64_t serial);
  void forget_handle(std::uint64_t serial) { handles_.erase(serial); }

  static awaitable<void> run_cleaner(std::shared_ptr<state> self);
  void serve_requests();
  awaitable<bool> clean_one(std::optional<std::uint64_t> victim);
  awaitable<void> carry(detail::log_book::pass pass, detail::reservation& room);
  awaitable<error_code> carry_group(std::span<const detail::log_book::chosen> blocks, bool carried,
                                    detail::reservation& room);
  awaitable<std::vector<std::optional<std::vector<std::uint64_t>>>> digests_of(
      file& from, std::span<const detail::log_book::chosen> blocks);
  awaitable<error_code> copy_run(file& from, file& to, const detail::log_record& record, std::uint32_t layer,
                                 std::span<const detail::log_book::chosen> blocks, std::size_t first,
                                 std::span<std::optional<std::vector<std::uint64_t>>> digests);
  awaitable<result<std::pair<extent, std::shared_ptr<detail::log_record>>>> copy_blocks(
      std::span<const detail::log_book::chosen> blocks, bool carried, detail::reservation& room);
  awaitable<error_code> remove_file(std::uint64_t serial, bool evicted);
  bool nothing_to_clean() const;

  awaitable<error_code> recover_file(directory_entry entry, found& all);
  awaitable<void> keep_whole(file& f, std::uint64_t size, said& index);
  std::shared_ptr<const detail::log_group> shared_layout(const std::shared_ptr<const detail::log_group>& group);
  awaitable<std::size_t> count_old_blocks();

  std::shared_ptr<detail::log_tail> tails_[2];
  semaphore tail_turn_[2];
  std::map<std::uint64_t, handle> handles_;
  std::uint64_t handle_uses_ = 0;
  std::unordered_map<detail::stored_id, std::uint64_t, detail::stored_id_hash> claimed_;  // and their pins
  std::vector<std::shared_ptr<semaphore>> when_unclaimed_;
  std::deque<std::shared_ptr<request>> requests_;
  bool cleaning_ = false, entering_given_up_ = false;
  std::size_t background_ = 0;  // entries, seals and removals on their way
  std::vector<std::shared_ptr<semaphore>> when_clean_, when_vacated_;
  std::uint64_t disk_limit_ = ~std::uint64_t{0};
};

namespace detail {

// Blocks that are not given up for a quota while this is there, and files that may not go.
class file_holds {
 public:
  explicit file_holds(std::shared_ptr<file_store::state> s) : state_(std::move(s)) {}
  file_holds(const file_holds&) = delete;
  file_holds& operator=(const file_holds&) = delete;
  ~file_holds() {
    for (const auto& [id, pin] : pins_) state_->book.quotas().unpin(id, pin);
    for (auto serial : held_) state_->book.release(serial);
    if (!held_.empty()) state_->clean_later();
  }
  void add(const stored_id& id, std::uint64_t serial) {
    if (const auto pin = state_->book.quotas().pin(id)) pins_.emplace_back(id, pin);
    if (!held_.empty() && held_.back() == serial) return;
    state_->book.hold(serial);
    held_.push_back(serial);
  }

 private:
  std::shared_ptr<file_store::state> state_;
  std::vector<std::uint64_t> held_;
  std::vector<std::pair<stored_id, std::uint64_t>> pins_;
};

// No room on the disk is what a store calls full: errc::store_full.
error_code as_store_error(error_code ec);

awaitable<std::tuple<error_code, std::unique_ptr<block_writer>>> open_file_writer(std::shared_ptr<file_store::state> s,
                                                                                  namespace_id ns, block_layout layout,
                                                                                  std::vector<block_key> keys,
                                                                                  write_options options);
awaitable<std::tuple<error_code, std::unique_ptr<block_reader>>> open_file_reader(std::shared_ptr<file_store::state> s,
                                                                                  namespace_id ns, block_layout layout,
                                                                                  std::vector<block_key> keys);

}  // namespace detail

}  // namespace cokv

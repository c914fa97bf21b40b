// What a file store's parts share: the index, who takes which room, the bounds on file operations, and the removal of
// files, which goes on by itself whatever becomes of who asked for it.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/file.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/with.hpp"
#include "store/block_file.hpp"
#include "store/file_pieces.hpp"
#include "store/s3_fifo.hpp"

namespace cokv {

namespace detail {

// Bytes of the limit that are spoken for.
class reservation {
 public:
  reservation() = default;
  reservation(std::shared_ptr<std::uint64_t> used, std::uint64_t bytes) : used_(std::move(used)), bytes_(bytes) {
    *used_ += bytes_;
  }
  reservation(reservation&& o) noexcept : used_(std::move(o.used_)), bytes_(std::exchange(o.bytes_, 0)) {}
  reservation& operator=(reservation&& o) noexcept {
    if (this != &o) {
      release();
      used_ = std::move(o.used_);
      bytes_ = std::exchange(o.bytes_, 0);
    }
    return *this;
  }
  ~reservation() { release(); }
  void give_back(std::uint64_t bytes) noexcept {
    *used_ -= bytes;
    bytes_ -= bytes;
  }
  std::uint64_t bytes() const noexcept { return bytes_; }
  void release() noexcept {
    if (used_) *used_ -= bytes_;
    used_.reset();
  }

 private:
  std::shared_ptr<std::uint64_t> used_;
  std::uint64_t bytes_ = 0;
};

struct file_entry {
  stored_id id;
  std::string path;
  std::shared_ptr<const block_layout> layout;
  reservation room;
};

// f(i) for every i below n, `width` at a time; the first failure cancels the rest.
template <class F>
awaitable<error_code> for_each_index(std::size_t n, std::size_t width, F f) {
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

  std::shared_ptr<detail::file_entry> find(const detail::stored_id& id) const;
  // Out of the index at once, its file removed behind; its room is free.
  void drop(const std::shared_ptr<detail::file_entry>& e, std::shared_ptr<semaphore> removed = nullptr);
  void remove_later(std::string path, std::shared_ptr<semaphore> removed = nullptr);
  // The bytes that blocks may take: the limit, or less where the disk was found full before it.
  std::uint64_t limit();
  void disk_is_full() { disk_limit_ = std::min(disk_limit_, *used); }
  // Waits for deferred commits and removals.
  static awaitable<error_code> settle(std::shared_ptr<state> self);
  // Room for as many bytes, taken; waits until the files that had to go are gone.
  awaitable<std::tuple<error_code, detail::reservation>> make_room(std::uint64_t bytes);
  void insert(std::shared_ptr<detail::file_entry> e);
  std::shared_ptr<const block_layout> share(const namespace_id& ns, const block_layout& layout);

  std::string blocks_directory() const { return options.directory + "/blocks"; }
  std::string namespace_directory(const namespace_id& ns) const { return blocks_directory() + "/" + ns.hex(); }
  std::string temporary_directory() const { return options.directory + "/tmp"; }
  std::string lock_path() const { return options.directory + "/lock"; }

  // One of the operations on files that may go on at a time; without a turn of the loop where nobody waits.
  awaitable<std::tuple<error_code, permit>> admit();
  // A block's file: past the system's cache where that was asked for and can be.
  awaitable<std::tuple<error_code, file>> open_block(std::string path, open_mode mode);
  // Of the segments that are written from now on.
  std::uint32_t alignment() const { return direct ? detail::block_file_page : 1; }
  // Reads all that stands before the data of an open file.
  awaitable<result<detail::block_file>> read_head(file& f);
  // Builds the index from what is in the folder.
  awaitable<error_code> recover();

  asio::any_io_executor ex;
  file file_lock;  // held as long as anything of this store may touch the folder
  file_store_options options;
  file_system& files;
  semaphore operations;
  semaphore open_files;
  semaphore deferred;
  detail::staging_pieces staging;
  bool direct;  // until the file system says no
  std::shared_ptr<std::uint64_t> used = std::make_shared<std::uint64_t>(0);
  std::unordered_map<detail::stored_id, std::shared_ptr<detail::file_entry>, detail::stored_id_hash> index;
  detail::s3_fifo order;
  std::map<namespace_id, std::shared_ptr<const block_layout>> layouts;  // one shared by most blocks of a namespace
  std::uint64_t next_serial = 1;
  store_info counters;

 private:
  struct removal {
    std::string path;
    std::shared_ptr<semaphore> removed;
  };
  static awaitable<void> remove_all(std::shared_ptr<state> self);
  awaitable<error_code> recover_namespace(std::string directory, namespace_id ns);
  awaitable<error_code> recover_file(std::string directory, namespace_id ns, directory_entry entry);

  std::deque<removal> removals_;
  std::size_t removers_ = 0;
  std::vector<std::shared_ptr<semaphore>> when_removed_;
  std::uint64_t disk_limit_ = ~std::uint64_t{0};
};

namespace detail {

// Blocks that may not be given up while this is there.
class file_pins {
 public:
  explicit file_pins(std::shared_ptr<file_store::state> s) : state_(std::move(s)) {}
  file_pins(const file_pins&) = delete;
  file_pins& operator=(const file_pins&) = delete;
  ~file_pins() {
    for (auto& [id, pin] : held_) state_->order.unpin(id, pin);
  }
  void add(const stored_id& id) { held_.emplace_back(id, state_->order.pin(id)); }

 private:
  std::shared_ptr<file_store::state> state_;
  std::vector<std::pair<stored_id, std::uint64_t>> held_;
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

// Blocks in a folder, up to a limit; they outlive the process. What is written is appended to a log, a few large files:
// a commit is an entry in one of them, and one sync is for all commits that wait for it. What was committed is there
// after a crash, what was removed stays away, and a torn block is never in sight; every read is verified against what
// was noted when the block was written, and what is damaged is dropped and counted, never given.
//
//     auto store = co_await cokv::file_store::async_open(ex, {.directory = "/var/cache/cokv",
//                                                             .limit_bytes = 50ull << 30});
//     auto n = co_await store->async_match(ns, keys);
#pragma once

#include <functional>

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"

namespace cokv {

// How far the opening of a folder is.
struct recovery_progress {
  std::uint64_t files_done = 0, files = 0;
  std::uint64_t bytes_done = 0, bytes = 0;  // what those files take; most of it is not read
};

struct file_store_options {
  std::string directory;                                // made if need be; one store at a time
  std::uint64_t limit_bytes = std::uint64_t{10} << 30;  // of files, what is not wanted any more included
  // A tenant (write_options::tenant) never has more than its quota: see below.
  tenant_quotas quotas = {};
  std::size_t max_operations = 16;   // file operations at a time
  std::size_t max_open_files = 256;  // kept open between operations; those that are written besides
  std::size_t max_deferred = 8;      // deferred commits under way; one more waits
  bool direct = false;               // past the system's cache: see below
  // None: what says where blocks are is verified all the same, blocks are not, and a commit takes two syncs. For disks
  // that do it themselves.
  digest_algorithm digest = digest_algorithm::xxh3_64;
  // Of a file of the log, before the next is begun; room is given back file by file. 0: a 128th of the limit, at most
  // 256 MiB. Blocks that are larger have a file each.
  std::uint64_t segment_bytes = 0;
  std::function<void(const recovery_progress&)> progress = {};  // called after each file while a folder is opened
  // Called from within the store, which it must not use: not for what is there when the folder is opened, nor for what
  // is carried over.
  change_handler on_change = {};
};

// A fresh block is kept until a tenth of the limit has been written behind it, or, where it was asked for meanwhile,
// until the rest of it has: log_book.hpp says what is given up when. The last sixteenth of the limit is kept free for
// what is carried over then.
//
// Direct, blocks go between memory and disk without the system's cache: no memory but the caller's is taken, and no time
// to copy. What was written is not read back from memory then, and a write waits for the disk: for blocks that come back
// late, on a disk that is fast, under a cache of our own. Segments begin at multiples of 4096 bytes in such files, so
// small ones take more room; memory that is not aligned, and the end of a segment that is not, goes through staging, at
// most 1 MiB for each operation. Where the file system has no such way, or asks for a larger alignment, the store does
// without, and info().direct is false. Blocks are read whichever way they were written.
//
// async_open_write reserves room for all its blocks: errc::too_large when they could never fit, errc::store_full when
// what is there may not be given up: it is being read, or written. When the disk fills up below the limit, a writer
// gives up its last blocks, so that the first ones keep a prefix: its commit is errc::store_full, kept() says how many
// are there, and from then on the store gives up old blocks as if its limit were what the disk took. A deferred commit
// completes when all bytes were handed to the system; the entry and its sync follow.
//
// Whose a block is (write_options::tenant, of at most 255 bytes, else errc::invalid_argument) is kept with it, through
// cleaning and restarts; info().tenants says what the blocks of each take, and what it is writing.
//
// A tenant with a quota never has more than that, blocks as they are laid out in files and what it is writing: what it
// writes beyond takes the place of its own blocks, when the writer is opened. Blocks that somebody has open stay, those
// that a writer found stored already too. async_open_write gives errc::too_large for what the quota could never hold,
// and errc::store_full, with nothing given up, where too much of it is being read or written. What was given up stays
// so when the writer fails or is abandoned: it is written down with the writer's own entry, or by itself when the writer is
// gone, and async_settle waits for that. A crash, or the end of the process, before may bring it back with the content that it
// had, and never once it was written anew. A quota claims nothing:
// blocks that go for want of room are whoever's they are.
//
// async_remove, and a commit with force, complete when what was there can't come back, whatever crashes. What was given
// up for want of room may, if the crash came just then.
class file_store final : public store {
 public:
  using open_handler = asio::any_completion_handler<void(error_code, std::unique_ptr<file_store>)>;

  // Opens a folder: reads what the files say of themselves, several at a time, and gives up the oldest beyond the limit.
  // Blocks are not read, but for the last commits before a crash. Files that are not ours, or of another version, those
  // of the layout before with its file for each block included, stay where they are and are counted in info().refused.
  // errc::in_use while another store has the folder, of this process or another; the end of that process frees it.
  // Throws config_error for an empty directory or a limit of 0; errors: the system's.
  template <asio::completion_token_for<void(error_code, std::unique_ptr<file_store>)> Token = asio::deferred_t>
  static auto async_open(asio::any_io_executor ex, file_store_options options, Token&& token = Token()) {
    check(options);
    return detail::initiate_erased<void(error_code, std::unique_ptr<file_store>)>(
        std::forward<Token>(token), ex,
        [ex, options = std::move(options)](open_handler h) mutable { open(ex, std::move(options), std::move(h)); });
  }
  ~file_store() override;

  store_info info() const override;

  // What a block that is written counts for, of its tenant's quota too: `direct` as info() has it. On any thread.
  static std::uint64_t bytes_of(const block_layout& layout, bool direct);

  // From now on. Blocks stay; who has more than its new quota gives it up with its next write. What is open then may go
  // too where its tenant had no quota before: who has it open keeps it.
  void set_quotas(const tenant_quotas& quotas);

  struct state;

 private:
  explicit file_store(std::shared_ptr<state> s);
  static void check(const file_store_options& options);
  static void open(asio::any_io_executor ex, file_store_options options, open_handler handler);

  void do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) override;
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                     writer_handler handler) override;
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler handler) override;
  void do_remove(namespace_id ns, block_key key, done_handler handler) override;
  void do_layout(namespace_id ns, block_key key, layout_handler handler) override;
  void do_settle(done_handler handler) override;

  std::shared_ptr<state> state_;
};

}  // namespace cokv

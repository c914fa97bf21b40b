// Blocks in a folder, one file each, up to a limit; they outlive the process. A file is written under a temporary name,
// synced, and renamed when it is whole, so a crash leaves no torn block in sight; every read is verified against the
// digests in the file's header, and what is damaged is removed and counted, never given.
//
//     auto store = co_await cokv::file_store::async_open(ex, {.directory = "/var/cache/cokv",
//                                                             .limit_bytes = 50ull << 30});
//     auto n = co_await store->async_match(ns, keys);
#pragma once

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"

namespace cokv {

struct file_store_options {
  std::string directory;                                // made if need be; one store at a time
  std::uint64_t limit_bytes = std::uint64_t{10} << 30;  // of files, those being written included
  std::size_t max_operations = 16;                      // file operations at a time
  std::size_t max_open_files = 256;                     // kept open between operations
  std::size_t max_deferred = 8;                         // deferred commits under way; one more waits
  bool direct = false;                                  // past the system's cache: see below
  // None: what stands before the data is verified all the same, the data is not. For disks that do it themselves.
  digest_algorithm digest = digest_algorithm::xxh3_64;
};

// Direct, blocks go between memory and disk without the system's cache: no memory but the caller's is taken, and no time
// to copy. What was written is not read back from memory then, and a write waits for the disk: for blocks that come back
// late, on a disk that is fast, under a cache of our own. Segments begin at multiples of 4096 bytes in such files, so
// small ones take more room; memory that is not aligned, and the end of a segment that is not, goes through staging, at
// most 1 MiB for each operation. Where the file system has no such way, or asks for a larger alignment, the store does
// without, and info().direct is false. Blocks are read whichever way they were written.
//
// async_open_write reserves room for all its blocks: errc::too_large when they could never fit, errc::store_full when
// what is there may not be given up. When the disk fills up below the limit, a writer gives up its last blocks, so that
// the first ones keep a prefix: its commit is errc::store_full, kept() says how many are there, and from then on the
// store gives up old blocks as if its limit were what the disk took. A deferred commit completes when all bytes were
// handed to the system; sync and rename follow.
class file_store final : public store {
 public:
  using open_handler = asio::any_completion_handler<void(error_code, std::unique_ptr<file_store>)>;

  // Opens a folder: removes what a crash left half-written, reads the header of every block, gives up the oldest beyond
  // the limit. Files that are not ours, or of another version, stay where they are and are counted in info().refused.
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

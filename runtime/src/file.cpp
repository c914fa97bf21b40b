#include "cokv/runtime/file.hpp"

#include <cstdlib>

#include "file_pool.hpp"
#include "posix_file.hpp"
#include "services.hpp"

#if defined(BOOST_ASIO_HAS_IO_URING)
#include <boost/asio/random_access_file.hpp>
#include <boost/asio/read_at.hpp>
#include <boost/asio/write_at.hpp>
#endif

namespace cokv {
namespace {

using detail::file_pool;
namespace posix = detail::posix;

constexpr std::size_t pool_threads = 2;
// What the loop copies by itself from the system's cache, about 10 us: to go through a thread or a ring and come back
// costs as much as 16 KiB.
constexpr std::size_t loop_copies = std::size_t{64} << 10;

template <class Buffers>
bool answered(file_pool& pool, int fd, std::uint64_t offset, const Buffers& into, file::transfer_handler& done) {
  const auto size = asio::buffer_size(into);
  if (size > loop_copies || !posix::read_cached(fd, offset, into)) return false;
  pool.answer(std::move(done), error_code(), size);
  return true;
}

class pool_file final : public file::impl {
 public:
  pool_file(asio::any_io_executor ex, std::shared_ptr<file_pool> pool, int fd, file_alignment alignment)
      : ex_(std::move(ex)),
        pool_(std::move(pool)),
        fd_(std::make_shared<posix::descriptor>(fd)),
        alignment_(alignment) {}

  asio::any_io_executor get_executor() const noexcept override { return ex_; }
  void read_at(std::uint64_t offset, asio::mutable_buffer into, file::transfer_handler done) override {
    read(offset, into, std::move(done));
  }
  void write_at(std::uint64_t offset, asio::const_buffer from, file::transfer_handler done) override {
    write(offset, from, std::move(done));
  }
  void read_at(std::uint64_t offset, std::vector<asio::mutable_buffer> into, file::transfer_handler done) override {
    read(offset, std::move(into), std::move(done));
  }
  void write_at(std::uint64_t offset, std::vector<asio::const_buffer> from, file::transfer_handler done) override {
    write(offset, std::move(from), std::move(done));
  }
  void sync(file::handler done) override {
    pool_->run(std::move(done), [fd = fd_] { return std::tuple(posix::sync(fd->get())); });
  }
  result<std::uint64_t> size() const override { return posix::size(fd_->get()); }
  file_alignment alignment() const override { return alignment_; }

 private:
  template <class Buffers>
  void read(std::uint64_t offset, Buffers into, file::transfer_handler done) {
    if (alignment_.offset == 1 && answered(*pool_, fd_->get(), offset, into, done)) return;
    const auto bytes = asio::buffer_size(into);
    pool_->run(
        std::move(done),
        [fd = fd_, offset, into = std::move(into), granule = alignment_.offset] {
          return posix::read_at(fd->get(), offset, into, granule);
        },
        bytes);
  }
  template <class Buffers>
  void write(std::uint64_t offset, Buffers from, file::transfer_handler done) {
    const auto bytes = asio::buffer_size(from);
    pool_->run(
        std::move(done),
        [fd = fd_, offset, from = std::move(from), granule = alignment_.offset] {
          return posix::write_at(fd->get(), offset, from, granule);
        },
        bytes);
  }

  asio::any_io_executor ex_;
  std::shared_ptr<file_pool> pool_;
  std::shared_ptr<posix::descriptor> fd_;
  file_alignment alignment_;
};

#if defined(BOOST_ASIO_HAS_IO_URING)

// Containers often forbid io_uring, and Asio throws when it can't set up a ring.
bool io_uring_works() {
  if (const char* wanted = std::getenv("COKV_IO_URING"); wanted && std::string_view(wanted) == "0") return false;
  static const bool works = [] {
    try {
      asio::io_context probe(1);
      asio::random_access_file file(probe);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }();
  return works;
}

// Direct operations, and small reads of what is not in the cache. What goes through it is copied: from a ring a read is
// by whoever submits it, the loop, and a write, which may have to wait for room, by a thread of the kernel's, which
// costs more than one of ours.
class uring_file final : public file::impl {
 private:
  const std::shared_ptr<asio::random_access_file>& opened() {
    if (!file_) file_ = std::make_shared<asio::random_access_file>(ex_, fd_.release());
    return file_;
  }

  int descriptor() const { return file_ ? file_->native_handle() : fd_.get(); }

  // All that is left in one call: Asio's own conditions make calls of 64 KiB. Where a direct operation ends off the
  // granule, so does the file.
  auto whole(std::size_t size) const {
    return [size, granule = alignment_.offset](error_code ec, std::size_t done) -> std::size_t {
      return ec || done >= size || done % granule != 0 ? 0 : std::min(size - done, std::size_t{1} << 30);
    };
  }

  // The file stays open until its operations are over; an end of file is a short read, and no write is short.
  auto keep(file::transfer_handler done, std::size_t at_least = 0) {
    auto slot = asio::get_associated_cancellation_slot(done);
    auto ex = asio::get_associated_executor(done, asio::any_completion_executor(ex_));
    auto finish = [done = std::move(done), open = file_, at_least](error_code ec, std::size_t n) mutable {
      if (ec == asio::error::eof) ec = {};
      if (!ec && n < at_least) ec = error_code(EIO, boost::system::system_category());
      std::move(done)(ec, n);
    };
    return asio::bind_cancellation_slot(slot, asio::bind_executor(ex, std::move(finish)));
  }

  template <class Buffers>
  void read(std::uint64_t offset, Buffers into, file::transfer_handler done) {
    if (!direct_ && answered(*pool_, descriptor(), offset, into, done)) return;
    auto& f = *opened();  // before keep() takes its share of it
    const auto bytes = asio::buffer_size(into);
    if (!direct_ && bytes > loop_copies)
      pool_->run(
          std::move(done),
          [open = file_, offset, into = std::move(into)] {
            return posix::read_at(open->native_handle(), offset, into, 1);
          },
          bytes);
    else
      asio::async_read_at(f, offset, std::move(into), whole(bytes), keep(std::move(done)));
  }

  template <class Buffers>
  void write(std::uint64_t offset, Buffers from, file::transfer_handler done) {
    auto& f = *opened();
    const auto bytes = asio::buffer_size(from);
    if (!direct_)
      pool_->run(
          std::move(done),
          [open = file_, offset, from = std::move(from)] {
            return posix::write_at(open->native_handle(), offset, from, 1);
          },
          bytes);
    else
      asio::async_write_at(f, offset, std::move(from), whole(bytes), keep(std::move(done), bytes));
  }

 public:
  // Made on a thread of the pool: Asio's file object comes with the first use, on the context's thread.
  uring_file(asio::any_io_executor ex, std::shared_ptr<file_pool> pool, int fd, file_alignment alignment, bool direct)
      : ex_(std::move(ex)), pool_(std::move(pool)), fd_(fd), alignment_(alignment), direct_(direct) {}

  asio::any_io_executor get_executor() const noexcept override { return ex_; }
  void read_at(std::uint64_t offset, asio::mutable_buffer into, file::transfer_handler done) override {
    read(offset, into, std::move(done));
  }
  void write_at(std::uint64_t offset, asio::const_buffer from, file::transfer_handler done) override {
    write(offset, from, std::move(done));
  }
  void read_at(std::uint64_t offset, std::vector<asio::mutable_buffer> into, file::transfer_handler done) override {
    read(offset, std::move(into), std::move(done));
  }
  void write_at(std::uint64_t offset, std::vector<asio::const_buffer> from, file::transfer_handler done) override {
    write(offset, std::move(from), std::move(done));
  }
  void sync(file::handler done) override {
    pool_->run(std::move(done), [f = opened()] { return std::tuple(posix::sync(f->native_handle())); });
  }
  result<std::uint64_t> size() const override { return posix::size(descriptor()); }
  file_alignment alignment() const override { return alignment_; }

 private:
  asio::any_io_executor ex_;
  std::shared_ptr<file_pool> pool_;
  posix::descriptor fd_;
  file_alignment alignment_;
  bool direct_;
  std::shared_ptr<asio::random_access_file> file_;
};

#endif

class real_file_system final : public file_system::impl {
 public:
  explicit real_file_system(const asio::any_io_executor& ex)
      : ex_(ex), pool_(std::make_shared<file_pool>(ex, pool_threads)) {}

  void open(std::string path, open_mode mode, bool direct, file_system::open_handler done) override {
    pool_->run(std::move(done), [ex = ex_, pool = pool_, path, mode, direct]() -> std::tuple<error_code, file> {
      auto [ec, fd] = posix::open(path, mode, direct);
      if (ec) return {ec, file()};
      return {ec, file(make_file(ex, pool, fd, direct))};
    });
  }
  void remove(std::string path, file_system::handler done) override {
    pool_->run(std::move(done), [path] { return std::tuple(posix::remove(path)); });
  }
  void rename(std::string from, std::string to, file_system::handler done) override {
    pool_->run(std::move(done), [from, to] { return std::tuple(posix::rename(from, to)); });
  }
  void list(std::string directory, file_system::list_handler done) override {
    pool_->run(std::move(done), [directory] { return posix::list(directory); });
  }
  void make_directories(std::string path, file_system::handler done) override {
    pool_->run(std::move(done), [path] { return std::tuple(posix::make_directories(path)); });
  }
  void sync_directory(std::string path, file_system::handler done) override {
    pool_->run(std::move(done), [path] { return std::tuple(posix::sync_directory(path)); });
  }
  result<std::uint64_t> free_space(const std::string& path) const override { return posix::free_space(path); }
  void shutdown() override { pool_->stop(); }

 private:
  static std::unique_ptr<file::impl> make_file(const asio::any_io_executor& ex, const std::shared_ptr<file_pool>& pool,
                                               int fd, bool direct) {
    const auto alignment = direct ? posix::direct_alignment(fd) : file_alignment{};
#if defined(BOOST_ASIO_HAS_IO_URING)
    if (io_uring_works()) return std::make_unique<uring_file>(ex, pool, fd, alignment, direct);
#endif
    return std::make_unique<pool_file>(ex, pool, fd, alignment);
  }

  asio::any_io_executor ex_;
  std::shared_ptr<file_pool> pool_;
};

}  // namespace

file_system& file_system::of(const asio::any_io_executor& ex) {
  auto& self = asio::use_service<file_system>(asio::query(ex, asio::execution::context));
  if (!self.impl_) {
    self.ex_ = detail::service_executor(ex);
    self.impl_ = std::make_unique<real_file_system>(self.ex_);
  }
  return self;
}

}  // namespace cokv

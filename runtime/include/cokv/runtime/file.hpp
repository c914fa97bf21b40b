// The seam to files: random-access files and the few directory operations that stores need, real or simulated.
// file_system::of(executor) is the machine's files on a real context (a small pool of threads with pread and pwrite, and
// io_uring, where it works, for what that does better; COKV_IO_URING=0 in the environment asks for the pool alone) and a
// simulated disk on a sim_context, which loses what was not synced in a crash.
//
//     auto& fs = cokv::file_system::of(co_await asio::this_coro::executor);
//     auto [ec, f] = co_await fs.async_open("block.kv", cokv::open_mode::create, asio::as_tuple(asio::deferred));
//     auto n = co_await f.async_write_at(0, asio::buffer(data), asio::deferred);
//     co_await f.async_sync(asio::deferred);
//
// Who reads or writes what is not read again soon opens with async_open_direct: bytes go between memory and disk without
// the system's cache, which keeps its room for others and its copy to itself. There every offset, size and address is a
// multiple of what alignment() says, else the operation is invalid_argument.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cokv/runtime/asio.hpp"

namespace cokv {

enum class open_mode {
  read,        // must exist
  write,       // must exist; read and write
  create,      // made or emptied; read and write
  create_new,  // must not exist: already there is file_exists; read and write
  lock         // made if need be, held by one handle at a time, of all processes: else errc::in_use
};

// What addresses of buffers, and offsets and sizes, must be multiples of. Past the end of a file a direct read is short.
struct file_alignment {
  std::size_t memory = 1, offset = 1;
};

// An open file. Reads and writes move the whole buffer: fewer bytes read means end of file (n is what there was,
// no error), fewer bytes written means the error says why. Any number of operations at a time; buffers belong to
// an operation until it completes. Cancelling (terminal, partial, total) takes an operation that has not begun out
// of the queue; one that has begun completes when the system no longer touches the buffer. Destroying the handle
// closes the file after what is in flight. Errors are the system's: no_space_on_device, io_error, ... Move-only.
class file {
 public:
  using executor_type = asio::any_io_executor;
  using transfer_handler = asio::any_completion_handler<void(error_code, std::size_t)>;
  using handler = asio::any_completion_handler<void(error_code)>;

  class impl {
   public:
    virtual ~impl() = default;
    virtual asio::any_io_executor get_executor() const noexcept = 0;
    virtual void read_at(std::uint64_t offset, asio::mutable_buffer into, transfer_handler done) = 0;
    virtual void write_at(std::uint64_t offset, asio::const_buffer from, transfer_handler done) = 0;
    virtual void read_at(std::uint64_t offset, std::vector<asio::mutable_buffer> into, transfer_handler done) = 0;
    virtual void write_at(std::uint64_t offset, std::vector<asio::const_buffer> from, transfer_handler done) = 0;
    virtual void sync(handler done) = 0;
    virtual result<std::uint64_t> size() const = 0;
    virtual file_alignment alignment() const = 0;
  };

  file() = default;
  explicit file(std::unique_ptr<impl> p) : impl_(std::move(p)) {}

  executor_type get_executor() const noexcept { return impl_->get_executor(); }
  bool is_open() const noexcept { return impl_ != nullptr; }

  template <class Token = asio::deferred_t>
  auto async_read_at(std::uint64_t offset, asio::mutable_buffer into, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, std::size_t)>(initiate{impl_.get()}, token, offset, into);
  }

  template <class Token = asio::deferred_t>
  auto async_write_at(std::uint64_t offset, asio::const_buffer from, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, std::size_t)>(initiate{impl_.get()}, token, offset, from);
  }

  // The same with memory in several pieces, none of them empty, that lie one behind the other in the file: one call for
  // all of them.
  template <class Token = asio::deferred_t>
  auto async_read_at(std::uint64_t offset, std::vector<asio::mutable_buffer> into, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, std::size_t)>(initiate{impl_.get()}, token, offset,
                                                                      std::move(into));
  }

  template <class Token = asio::deferred_t>
  auto async_write_at(std::uint64_t offset, std::vector<asio::const_buffer> from, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, std::size_t)>(initiate{impl_.get()}, token, offset,
                                                                      std::move(from));
  }

  // void(error_code): what was written before is on the disk.
  template <class Token = asio::deferred_t>
  auto async_sync(Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code)>(initiate{impl_.get()}, token);
  }

  result<std::uint64_t> size() const { return impl_->size(); }
  file_alignment alignment() const { return impl_->alignment(); }
  void close() { impl_.reset(); }

 private:
  struct initiate {
    using executor_type = asio::any_io_executor;
    impl* self;
    executor_type get_executor() const noexcept { return self->get_executor(); }
    template <class Handler>
    void operator()(Handler&& done, std::uint64_t offset, asio::mutable_buffer into) const {
      self->read_at(offset, into, std::forward<Handler>(done));
    }
    template <class Handler>
    void operator()(Handler&& done, std::uint64_t offset, asio::const_buffer from) const {
      self->write_at(offset, from, std::forward<Handler>(done));
    }
    template <class Handler>
    void operator()(Handler&& done, std::uint64_t offset, std::vector<asio::mutable_buffer> into) const {
      self->read_at(offset, std::move(into), std::forward<Handler>(done));
    }
    template <class Handler>
    void operator()(Handler&& done, std::uint64_t offset, std::vector<asio::const_buffer> from) const {
      self->write_at(offset, std::move(from), std::forward<Handler>(done));
    }
    template <class Handler>
    void operator()(Handler&& done) const {
      self->sync(std::forward<Handler>(done));
    }
  };

  std::unique_ptr<impl> impl_;
};

struct directory_entry {
  std::string name;  // without the directory
  bool directory = false;
  std::uint64_t size = 0;
};

// One per context, used from the context's thread. Paths are the system's, UTF-8.
class file_system : public asio::execution_context::service {
 public:
  using open_handler = asio::any_completion_handler<void(error_code, file)>;
  using list_handler = asio::any_completion_handler<void(error_code, std::vector<directory_entry>)>;
  using handler = asio::any_completion_handler<void(error_code)>;

  class impl {
   public:
    virtual ~impl() = default;
    virtual void open(std::string path, open_mode mode, bool direct, open_handler done) = 0;
    virtual void remove(std::string path, handler done) = 0;
    virtual void rename(std::string from, std::string to, handler done) = 0;
    virtual void list(std::string directory, list_handler done) = 0;
    virtual void make_directories(std::string path, handler done) = 0;
    virtual void sync_directory(std::string path, handler done) = 0;
    virtual result<std::uint64_t> free_space(const std::string& path) const = 0;
    virtual void shutdown() = 0;
  };

  inline static asio::execution_context::id id;
  explicit file_system(asio::execution_context& context) : service(context) {}
  file_system(asio::execution_context& context, asio::any_io_executor ex, std::unique_ptr<impl> p)
      : service(context), ex_(std::move(ex)), impl_(std::move(p)) {}

  static file_system& of(const asio::any_io_executor& ex);
  const asio::any_io_executor& get_executor() const noexcept { return ex_; }

  // void(error_code, file)
  template <class Token = asio::deferred_t>
  auto async_open(std::string path, open_mode mode, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, file)>(initiate_open{this}, token, std::move(path), mode,
                                                               false);
  }

  // void(error_code, file): past the system's cache; invalid_argument where a file system has no such way.
  template <class Token = asio::deferred_t>
  auto async_open_direct(std::string path, open_mode mode, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, file)>(initiate_open{this}, token, std::move(path), mode, true);
  }

  // void(error_code): a file, or an empty directory.
  template <class Token = asio::deferred_t>
  auto async_remove(std::string path, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code)>(initiate_remove{this}, token, std::move(path));
  }

  // void(error_code): replaces `to` if it exists, at once for every reader.
  template <class Token = asio::deferred_t>
  auto async_rename(std::string from, std::string to, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code)>(initiate_rename{this}, token, std::move(from), std::move(to));
  }

  // void(error_code, std::vector<directory_entry>), sorted by name.
  template <class Token = asio::deferred_t>
  auto async_list(std::string directory, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, std::vector<directory_entry>)>(initiate_list{this}, token,
                                                                                       std::move(directory));
  }

  // void(error_code): the directory and its parents; already there is no error.
  template <class Token = asio::deferred_t>
  auto async_make_directories(std::string path, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code)>(initiate_make_directories{this}, token, std::move(path));
  }

  // void(error_code): names made, renamed and removed in this directory survive a crash from now on.
  template <class Token = asio::deferred_t>
  auto async_sync_directory(std::string path, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code)>(initiate_sync_directory{this}, token, std::move(path));
  }

  // Bytes that can still be written on the disk that holds `path`.
  result<std::uint64_t> free_space(const std::string& path) const { return impl_->free_space(path); }

 private:
  struct initiate_base {
    using executor_type = asio::any_io_executor;
    file_system* self;
    executor_type get_executor() const noexcept { return self->ex_; }
  };
  struct initiate_open : initiate_base {
    template <class Handler>
    void operator()(Handler&& done, std::string path, open_mode mode, bool direct) const {
      self->impl_->open(std::move(path), mode, direct, std::forward<Handler>(done));
    }
  };
  struct initiate_remove : initiate_base {
    template <class Handler>
    void operator()(Handler&& done, std::string path) const {
      self->impl_->remove(std::move(path), std::forward<Handler>(done));
    }
  };
  struct initiate_rename : initiate_base {
    template <class Handler>
    void operator()(Handler&& done, std::string from, std::string to) const {
      self->impl_->rename(std::move(from), std::move(to), std::forward<Handler>(done));
    }
  };
  struct initiate_list : initiate_base {
    template <class Handler>
    void operator()(Handler&& done, std::string directory) const {
      self->impl_->list(std::move(directory), std::forward<Handler>(done));
    }
  };
  struct initiate_make_directories : initiate_base {
    template <class Handler>
    void operator()(Handler&& done, std::string path) const {
      self->impl_->make_directories(std::move(path), std::forward<Handler>(done));
    }
  };
  struct initiate_sync_directory : initiate_base {
    template <class Handler>
    void operator()(Handler&& done, std::string path) const {
      self->impl_->sync_directory(std::move(path), std::forward<Handler>(done));
    }
  };

  void shutdown() override {
    if (impl_) impl_->shutdown();
  }

  asio::any_io_executor ex_;
  std::unique_ptr<impl> impl_;
};

}  // namespace cokv

// The seam to the network: byte streams, listeners and name resolution, real or simulated. network::of(executor) is
// TCP on a real context and a simulated network in virtual time on a sim_context; what is written against byte_stream
// (Beast's HTTP client and server, asio::async_read and async_write) runs on both unchanged.
//
//     auto& net = cokv::network::of(co_await asio::this_coro::executor);
//     auto [ec, stream] = co_await net.async_connect({"localhost", 8080}, asio::as_tuple(asio::deferred));
//     if (!ec) co_await asio::async_write(stream, asio::buffer("hello"), asio::deferred);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cokv/runtime/asio.hpp"

namespace cokv {

// Where to listen or connect to. An empty host means loopback; one that begins with "unix:" is a socket in the file
// system, reached by the same user's processes on this machine alone, and has no port.
struct endpoint {
  std::string host;
  std::uint16_t port = 0;

  static endpoint local(std::string_view path) { return {"unix:" + std::string(path), 0}; }
  bool is_local() const noexcept { return host.starts_with("unix:"); }
  std::string path() const { return is_local() ? host.substr(5) : std::string(); }

  bool operator==(const endpoint&) const = default;
  std::string to_string() const;  // "host:port", "[::1]:port", "unix:path"
};

// Reads "HOST:PORT", "[V6]:PORT" or ":PORT". Errors say what is wrong and compare equal to
// boost::system::errc::invalid_argument.
result<endpoint> parse_endpoint(std::string_view text);

// The buffers of one operation, erased: at most `limit` of them, what is beyond is left to the next operation (which
// is what "some" means).
template <class Buffer>
class buffer_list {
 public:
  static constexpr std::size_t limit = 128;

  buffer_list() noexcept {}
  template <class BufferSequence>
  explicit buffer_list(const BufferSequence& sequence) {
    auto end = asio::buffer_sequence_end(sequence);
    for (auto it = asio::buffer_sequence_begin(sequence); it != end && count_ < limit; ++it)
      if (Buffer one(*it); one.size() != 0) {
        std::construct_at(items_ + count_++, one);
        bytes_ += one.size();
      }
  }
  buffer_list(const buffer_list& other) : count_(other.count_), bytes_(other.bytes_) {
    std::uninitialized_copy_n(other.items_, count_, items_);
  }
  buffer_list& operator=(const buffer_list& other) {
    count_ = other.count_;
    bytes_ = other.bytes_;
    std::uninitialized_copy_n(other.items_, count_, items_);
    return *this;
  }

  const Buffer* begin() const { return items_; }
  const Buffer* end() const { return items_ + count_; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
  union {
    Buffer items_[limit];
  };
};

// A connected, ordered stream of bytes in both directions: Asio's AsyncReadStream and AsyncWriteStream. Move-only.
// At most one read and one write at a time; buffers belong to the operation until it completes. Operations honour
// terminal, partial and total cancellation (they then transferred nothing) and complete with operation_aborted.
// Destroying or closing the stream aborts what is pending. Errors: asio::error::eof, connection_reset, ...
//
// A stream to another process of this machine carries file descriptors too (a memory_handle's, say): what is attached
// arrives in order, with the first bytes written from then on, sixteen with each.
class byte_stream {
 public:
  using executor_type = asio::any_io_executor;
  using descriptor = std::shared_ptr<const int>;  // closed with its last owner
  using handler = asio::any_completion_handler<void(error_code, std::size_t)>;
  using mutable_buffers = buffer_list<asio::mutable_buffer>;
  using const_buffers = buffer_list<asio::const_buffer>;

  class impl {
   public:
    virtual ~impl() = default;
    virtual asio::any_io_executor get_executor() const noexcept = 0;
    virtual void read_some(const mutable_buffers& into, handler done) = 0;
    virtual void write_some(const const_buffers& from, handler done) = 0;
    virtual result<std::size_t> read_now(const mutable_buffers&) { return error_code(asio::error::would_block); }
    virtual result<std::size_t> write_now(const const_buffers&) { return error_code(asio::error::would_block); }
    virtual void shutdown_send() = 0;
    virtual void close() = 0;
    virtual bool is_open() const = 0;
    virtual bool quiet() { return is_open(); }
    virtual std::string peer() const = 0;
    virtual std::optional<int> peer_process() const { return std::nullopt; }
    virtual bool keeps() const { return false; }
    virtual void keep(std::shared_ptr<void>) {}
    virtual void expect(std::size_t) {}
    virtual bool carries_descriptors() const { return false; }
    virtual void attach(descriptor) {}
    virtual descriptor take_attached() { return {}; }
    virtual descriptor detach() { return {}; }
  };

  byte_stream() = default;
  explicit byte_stream(std::unique_ptr<impl> p) : impl_(std::move(p)) {}

  executor_type get_executor() const noexcept { return impl_->get_executor(); }

  template <class MutableBufferSequence, class Token = asio::deferred_t>
  auto async_read_some(const MutableBufferSequence& into, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, std::size_t)>(initiate_read{impl_.get()}, token, into);
  }

  template <class ConstBufferSequence, class Token = asio::deferred_t>
  auto async_write_some(const ConstBufferSequence& from, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, std::size_t)>(initiate_write{impl_.get()}, token, from);
  }

  // What fits without waiting, in one system call; would_block: write asynchronously. Not while a write is under way. A
  // stream takes only so much in this way before it wants an asynchronous operation: others are to have their turn.
  template <class ConstBufferSequence>
  result<std::size_t> write_now(const ConstBufferSequence& from) {
    return impl_->write_now(const_buffers(from));
  }

  // What has come already, in the same way. Not while a read is under way.
  template <class MutableBufferSequence>
  result<std::size_t> read_now(const MutableBufferSequence& into) {
    return impl_->read_now(mutable_buffers(into));
  }

  void shutdown_send() { impl_->shutdown_send(); }  // the peer reads eof after what was written
  void close() {
    if (impl_) impl_->close();
  }
  bool is_open() const { return impl_ && impl_->is_open(); }

  // Open, and nothing has come that was not read, its end neither, as far as the system can tell: on a stream of requests and
  // answers the next one may go out. Not while a read is under way.
  bool quiet() { return impl_ && impl_->quiet(); }
  std::string peer() const { return impl_ ? impl_->peer() : std::string(); }  // "host:port"

  // The process that a stream of this machine leads to, as it was when it was connected; 0: one that is not seen from here. None
  // of other streams.
  std::optional<int> peer_process() const { return impl_ ? impl_->peer_process() : std::nullopt; }

  // A stream that sends without copying may complete a write before its bytes are sent, if it is told what owns them:
  // keep() is for the next write, and does nothing where keeps() is false.
  bool keeps() const { return impl_ && impl_->keeps(); }
  void keep(std::shared_ptr<void> memory) { impl_->keep(std::move(memory)); }

  // So many bytes are sure to come, those of the next read among them: if it has to wait, it may do so until many are
  // there, where the system can (TCP's SO_RCVLOWAT), or for a few milliseconds. Waking a reader for each few costs both sides.
  void expect(std::size_t bytes) { impl_->expect(bytes); }

  bool carries_descriptors() const { return impl_ && impl_->carries_descriptors(); }
  void attach(descriptor d) { impl_->attach(std::move(d)); }     // ignored where they aren't carried
  descriptor take_attached() { return impl_->take_attached(); }  // the oldest that came; none: null

  // Closes the stream, but not the connection: the peer reads its end when the descriptor's last owner is gone, on
  // whatever thread, or this process. Null, and no effect, where descriptors aren't carried.
  descriptor detach() { return impl_->detach(); }

 private:
  struct initiate_read {
    using executor_type = asio::any_io_executor;
    impl* self;
    executor_type get_executor() const noexcept { return self->get_executor(); }
    template <class Handler, class Buffers>
    void operator()(Handler&& done, const Buffers& into) const {
      self->read_some(mutable_buffers(into), std::forward<Handler>(done));
    }
  };
  struct initiate_write {
    using executor_type = asio::any_io_executor;
    impl* self;
    executor_type get_executor() const noexcept { return self->get_executor(); }
    template <class Handler, class Buffers>
    void operator()(Handler&& done, const Buffers& from) const {
      self->write_some(const_buffers(from), std::forward<Handler>(done));
    }
  };

  std::unique_ptr<impl> impl_;
};

// Accepts connections. One accept at a time; it honours terminal, partial and total cancellation. Move-only.
class listener {
 public:
  using executor_type = asio::any_io_executor;
  using handler = asio::any_completion_handler<void(error_code, byte_stream)>;

  class impl {
   public:
    virtual ~impl() = default;
    virtual asio::any_io_executor get_executor() const noexcept = 0;
    virtual void accept(handler done) = 0;
    virtual endpoint local_endpoint() const = 0;
    virtual void close() = 0;
  };

  listener() = default;
  explicit listener(std::unique_ptr<impl> p) : impl_(std::move(p)) {}

  executor_type get_executor() const noexcept { return impl_->get_executor(); }

  // void(error_code, byte_stream). operation_aborted when cancelled or closed.
  template <class Token = asio::deferred_t>
  auto async_accept(Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, byte_stream)>(initiate_accept{impl_.get()}, token);
  }

  endpoint local_endpoint() const { return impl_->local_endpoint(); }  // tells the port where 0 was asked for
  void close() {
    if (impl_) impl_->close();
  }

 private:
  struct initiate_accept {
    using executor_type = asio::any_io_executor;
    impl* self;
    executor_type get_executor() const noexcept { return self->get_executor(); }
    template <class Handler>
    void operator()(Handler&& done) const {
      self->accept(std::forward<Handler>(done));
    }
  };

  std::unique_ptr<impl> impl_;
};

// One per context, used from the context's thread.
class network : public asio::execution_context::service {
 public:
  using connect_handler = asio::any_completion_handler<void(error_code, byte_stream)>;

  class impl {
   public:
    virtual ~impl() = default;
    virtual result<listener> listen(const endpoint& at, int backlog) = 0;
    virtual void connect(endpoint to, connect_handler done) = 0;
    virtual void shutdown() = 0;
  };

  inline static asio::execution_context::id id;
  explicit network(asio::execution_context& context) : service(context) {}
  network(asio::execution_context& context, asio::any_io_executor ex, std::unique_ptr<impl> p)
      : service(context), ex_(std::move(ex)), impl_(std::move(p)) {}

  static network& of(const asio::any_io_executor& ex);
  const asio::any_io_executor& get_executor() const noexcept { return ex_; }

  // Binds at once. Errors: address_in_use, access_denied, host_not_found, address_not_available; name_too_long (a path).
  // A name is resolved (blocking: names are for loopback and start-up); an empty host is loopback; port 0 takes a
  // free one.
  result<listener> listen(const endpoint& at, int backlog = 256) { return impl_->listen(at, backlog); }

  // void(error_code, byte_stream). Resolves, then tries each address. terminal, partial and total cancellation.
  // Errors: connection_refused, host_not_found, timed_out, ...
  template <class Token = asio::deferred_t>
  auto async_connect(endpoint to, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code, byte_stream)>(initiate_connect{this}, token, std::move(to));
  }

 private:
  struct initiate_connect {
    using executor_type = asio::any_io_executor;
    network* self;
    executor_type get_executor() const noexcept { return self->ex_; }
    template <class Handler>
    void operator()(Handler&& done, endpoint to) const {
      self->impl_->connect(std::move(to), std::forward<Handler>(done));
    }
  };

  void shutdown() override {
    if (impl_) impl_->shutdown();
  }

  asio::any_io_executor ex_;
  std::unique_ptr<impl> impl_;
};

}  // namespace cokv

#include "local_net.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstring>
#include <deque>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/passed_descriptors.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/result.hpp"
#include "socket_now.hpp"

namespace cokv::detail {
namespace {

using local = asio::local::stream_protocol;

constexpr std::size_t most_at_once = 16;   // descriptors with one call
constexpr std::size_t most_of_peer = 253;  // with one call of Linux: for what has no place here the system closes here
constexpr std::size_t most_untaken = 512;  // that came and nobody took

constexpr duration look_again = std::chrono::milliseconds(100);  // whether there is a place for descriptors

// A child that had it would hold the connection open when its parent is dead.
void keep_from_children(int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

bool would_block(const error_code& ec) { return ec == asio::error::would_block || ec == asio::error::try_again; }

// Of whoever connected the other end of a socket, or listened there.
result<ucred> credentials_of(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return last_error();
  return who;
}

// Shared with its operations, which outlive a stream that is destroyed.
class local_socket {
 public:
  explicit local_socket(local::socket s) : socket(std::move(s)) {
    error_code ignored;
    socket.native_non_blocking(true, ignored);
    keep_from_children(socket.native_handle());
  }

  // What is there to be read may bring descriptors for which there is no place in this process.
  bool crowded() const;

  // One system call, or would_block.
  std::size_t receive(error_code& ec);
  std::size_t send(error_code& ec);

  local::socket socket;
  byte_stream::mutable_buffers into;
  byte_stream::const_buffers from;
  std::deque<byte_stream::descriptor> outgoing, arrived;

 private:
  bool take(msghdr& message);

  iovec_array parts_;
};

bool local_socket::crowded() const {
  int unread = 0;
  return too_many_passed() && ::ioctl(const_cast<local::socket&>(socket).native_handle(), FIONREAD, &unread) == 0 &&
         unread != 0;
}

bool local_socket::take(msghdr& message) {
  for (auto* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
      arrived.push_back(passed_descriptor(fd));
    }
  }
  return (message.msg_flags & MSG_CTRUNC) == 0 && arrived.size() <= most_untaken;
}

std::size_t local_socket::receive(error_code& ec) {
  if (!socket.is_open()) return ec = asio::error::operation_aborted, 0;
  if (into.bytes() == 0) return 0;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * most_of_peer)> control;
  msghdr message{};
  message.msg_iov = parts_.data();
  message.msg_iovlen = list_parts(into, parts_);
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const auto n = uninterrupted([&] { return ::recvmsg(socket.native_handle(), &message, MSG_CMSG_CLOEXEC); });
  if (!n) return ec = n.error(), 0;
  // A peer that sends more descriptors than anybody can want.
  if (!take(message)) return ec = asio::error::connection_aborted, 0;
  if (*n == 0) ec = asio::error::eof;
  return *n;
}

std::size_t local_socket::send(error_code& ec) {
  if (!socket.is_open()) return ec = asio::error::operation_aborted, 0;
  if (from.bytes() == 0) return 0;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * most_at_once)> control{};
  msghdr message{};
  message.msg_iov = parts_.data();
  message.msg_iovlen = list_parts(from, parts_);
  const auto carried = std::min(outgoing.size(), most_at_once);
  // Those beyond one call's would come with the next, and late: a byte is enough to carry the first.
  if (outgoing.size() > carried) {
    message.msg_iovlen = 1;
    parts_[0].iov_len = 1;
  }
  if (carried > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * carried);
    auto* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * carried);
    for (std::size_t i = 0; i < carried; ++i)
      std::memcpy(CMSG_DATA(c) + i * sizeof(int), outgoing[i].get(), sizeof(int));
  }
  const auto n = uninterrupted([&] { return ::sendmsg(socket.native_handle(), &message, MSG_NOSIGNAL); });
  if (!n) return ec = n.error(), 0;
  outgoing.erase(outgoing.begin(), outgoing.begin() + static_cast<std::ptrdiff_t>(carried));
  return *n;
}

// Asio's reactor tells when, we do what it can't: a call with descriptors in it.
struct transfer {
  std::shared_ptr<local_socket> on;
  local::socket::wait_type what;
  enum { begins, waits, done } at = begins;
  error_code result = {};
  std::size_t n = 0;

  template <class Self>
  void operator()(Self& self, error_code ec = {}) {
    if (at == done) return self.complete(result, n);
    if (at == begins) self.reset_cancellation_state(asio::enable_total_cancellation());
    if (!ec && what == local::socket::wait_read && self.cancelled() == asio::cancellation_type::none &&
        on->socket.is_open() && on->crowded()) {
      at = waits;
      return clock::of(on->socket.get_executor()).async_wait_for(look_again, std::move(self));
    }
    if (!ec) n = what == local::socket::wait_read ? on->receive(ec) : on->send(ec);
    if (would_block(ec)) {
      if (self.cancelled() != asio::cancellation_type::none) return self.complete(asio::error::operation_aborted, 0);
      at = waits;
      auto& socket = on->socket;
      return socket.async_wait(what, std::move(self));
    }
    if (at == waits) return self.complete(ec, n);
    at = done;
    result = ec;
    auto ex = on->socket.get_executor();
    asio::post(ex, std::move(self));
  }
};

class local_stream final : public byte_stream::impl {
 public:
  local_stream(local::socket s, std::string peer)
      : socket_(std::make_shared<local_socket>(std::move(s))), peer_(std::move(peer)) {}
  ~local_stream() override { close(); }

  asio::any_io_executor get_executor() const noexcept override { return socket_->socket.get_executor(); }
  void read_some(const byte_stream::mutable_buffers& into, byte_stream::handler done) override {
    socket_->into = into;
    start(local::socket::wait_read, std::move(done));
  }
  void write_some(const byte_stream::const_buffers& from, byte_stream::handler done) override {
    socket_->from = from;
    start(local::socket::wait_write, std::move(done));
  }
  void shutdown_send() override {
    error_code ignored;
    socket_->socket.shutdown(local::socket::shutdown_send, ignored);
  }
  void close() override {
    auto& socket = socket_->socket;
    error_code ignored;
    if (!socket.is_open()) return;
    socket.shutdown(local::socket::shutdown_both, ignored);
    // With bytes that nobody read there may be descriptors, which the system closes with the socket.
    int unread = 0;
    if (::ioctl(socket.native_handle(), FIONREAD, &unread) == 0 && unread == 0) return (void)socket.close(ignored);
    const int fd = socket.release(ignored);
    if (!ignored) passed_descriptor(fd);
  }
  bool is_open() const override { return socket_->socket.is_open(); }
  bool quiet() override { return nothing_came(socket_->socket.native_handle()); }
  std::string peer() const override { return peer_; }
  std::optional<int> peer_process() const override {
    const auto who = credentials_of(socket_->socket.native_handle());
    return who ? std::optional(static_cast<int>(who->pid)) : std::nullopt;
  }

  bool carries_descriptors() const override { return true; }
  void attach(byte_stream::descriptor d) override { socket_->outgoing.push_back(std::move(d)); }
  byte_stream::descriptor take_attached() override {
    if (socket_->arrived.empty()) return {};
    auto d = std::move(socket_->arrived.front());
    socket_->arrived.pop_front();
    return d;
  }
  byte_stream::descriptor detach() override {
    if (!socket_->socket.is_open()) return {};
    error_code ec;
    const int fd = socket_->socket.release(ec);
    return ec ? nullptr : memory_handle::of_descriptor(fd, 0, 0).file;
  }

 private:
  void start(local::socket::wait_type what, byte_stream::handler done) {
    asio::async_compose<byte_stream::handler, void(error_code, std::size_t)>(transfer{socket_, what}, done,
                                                                             socket_->socket);
  }

  std::shared_ptr<local_socket> socket_;
  std::string peer_;
};

class local_listener final : public listener::impl {
 public:
  local_listener(local::acceptor acceptor, endpoint at) : acceptor_(std::move(acceptor)), at_(std::move(at)) {
    named_ = ::stat(at_.path().c_str(), &file_) == 0;
  }
  ~local_listener() override { close(); }

  asio::any_io_executor get_executor() const noexcept override {
    return const_cast<local::acceptor&>(acceptor_).get_executor();
  }
  void accept(listener::handler done) override {
    auto slot = asio::get_associated_cancellation_slot(done);
    auto ex = asio::get_associated_executor(done, asio::any_completion_executor(get_executor()));
    acceptor_.async_accept(asio::bind_cancellation_slot(
        slot,
        asio::bind_executor(ex, [peer = at_.host, done = std::move(done)](error_code ec, local::socket s) mutable {
          if (ec) return std::move(done)(ec, byte_stream());
          std::move(done)(ec, byte_stream(std::make_unique<local_stream>(std::move(s), std::move(peer))));
        })));
  }
  endpoint local_endpoint() const override { return at_; }
  void close() override {
    if (!acceptor_.is_open()) return;
    struct stat now{};
    // Another may have taken the place since.
    if (named_ && ::stat(at_.path().c_str(), &now) == 0 && now.st_ino == file_.st_ino && now.st_dev == file_.st_dev)
      ::unlink(at_.path().c_str());
    error_code ignored;
    acceptor_.close(ignored);
  }

 private:
  local::acceptor acceptor_;
  endpoint at_;
  struct stat file_{};
  bool named_ = false;
};

result<local::endpoint> place(const endpoint& at) {
  const auto path = at.path();
  if (path.empty() || path.find('\0') != path.npos) return error_code(asio::error::invalid_argument);
  if (path.size() >= sizeof(sockaddr_un::sun_path)) return error_code(asio::error::name_too_long);
  return local::endpoint(path);
}

// A socket's file outlives the process that was killed: whether somebody listens there, connecting tells.
bool abandoned(const asio::any_io_executor& ex, const local::endpoint& at) {
  struct stat there{};
  if (::lstat(at.path().c_str(), &there) != 0 || !S_ISSOCK(there.st_mode)) return false;
  local::socket probe(ex);
  error_code ec;
  probe.open(local(), ec);
  if (!ec) probe.native_non_blocking(true, ec);
  if (!ec) probe.connect(at, ec);
  return ec == asio::error::connection_refused;
}

}  // namespace

result<listener> listen_local(const asio::any_io_executor& ex, const endpoint& at, int backlog) {
  auto where = place(at);
  if (!where) return where.error();
  if (abandoned(ex, *where)) ::unlink(where->path().c_str());
  local::acceptor acceptor(ex);
  error_code ec;
  acceptor.open(local(), ec);
  if (!ec) keep_from_children(acceptor.native_handle());
  if (!ec && ::fchmod(acceptor.native_handle(), 0600) != 0) ec = last_error();  // before the name is there
  if (!ec) acceptor.bind(*where, ec);
  if (!ec) acceptor.listen(backlog, ec);
  if (ec) return ec;
  return listener(std::make_unique<local_listener>(std::move(acceptor), at));
}

awaitable<result<byte_stream>> connect_local(asio::any_io_executor ex, endpoint to) {
  auto where = place(to);
  if (!where) co_return where.error();
  local::socket socket(ex);
  error_code ec;
  socket.open(local(), ec);
  if (ec) co_return ec;
  if (auto connected = co_await socket.async_connect(*where, as_result); !connected)
    co_return connected.error() == boost::system::errc::no_such_file_or_directory
        ? error_code(asio::error::connection_refused)
        : connected.error();
  // Whoever may write into the folder may listen there first.
  const auto who = credentials_of(socket.native_handle());
  if (!who) co_return who.error();
  if (who->uid != ::geteuid()) co_return error_code(asio::error::access_denied);
  co_return byte_stream(std::make_unique<local_stream>(std::move(socket), to.host));
}

}  // namespace cokv::detail

#include "cokv/runtime/shared_listener.hpp"

#include <unistd.h>

#include <atomic>
#include <optional>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "tcp.hpp"

namespace cokv {

using asio::ip::tcp;

// Used on the owner's thread alone, but for what never changes.
struct shared_listener::state {
  explicit state(const asio::any_io_executor& owner)
      : home(std::make_shared<detail::shard_state>(owner, 0, 65536)), turn(owner, 1) {}

  shard_ref home;
  semaphore turn;  // one accept at a time, in the order in which they were asked for
  std::optional<tcp::acceptor> door;
  listener simulated;  // in virtual time all parts are of one context
  endpoint at;
  bool closed = false;
};

namespace {

// A connection on its way from one context to another.
struct traveller {
  traveller() = default;
  traveller(tcp p, int descriptor) : protocol(p), fd(descriptor) {}
  explicit traveller(byte_stream s) : stream(std::move(s)) {}
  traveller(traveller&& o) noexcept : protocol(o.protocol), fd(std::exchange(o.fd, -1)), stream(std::move(o.stream)) {}
  traveller& operator=(traveller&&) = delete;
  ~traveller() {
    if (fd >= 0) ::close(fd);
  }

  tcp protocol = tcp::v4();
  int fd = -1;
  byte_stream stream;
};

using shared = std::shared_ptr<shared_listener::state>;

awaitable<result<traveller>> accept_there(shared s) {
  auto turn = co_await s->turn.async_acquire(1, as_result);
  if (!turn) co_return turn.error();
  if (s->closed) co_return errc::closed;
  if (!s->door) {
    auto stream = co_await s->simulated.async_accept(as_result);
    if (!stream) co_return stream.error();
    co_return traveller(std::move(*stream));
  }
  auto socket = co_await s->door->async_accept(as_result);
  if (!socket) co_return socket.error();
  error_code ec;
  const auto protocol = socket->local_endpoint(ec).protocol();
  const int fd = socket->release(ec);
  if (ec) co_return ec;
  co_return traveller(protocol, fd);
}

awaitable<result<byte_stream>> accept_here(asio::any_io_executor here, shared s) {
  co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
  auto came = co_await on(s->home, [s] { return accept_there(s); });
  if (!came) co_return came.error();
  if (came->fd < 0) co_return std::move(came->stream);
  tcp::socket socket(here);
  error_code ec;
  socket.assign(came->protocol, came->fd, ec);
  if (ec) co_return ec;
  came->fd = -1;
  co_return detail::make_tcp_stream(std::move(socket));
}

class part_listener final : public listener::impl {
 public:
  part_listener(asio::any_io_executor here, shared s) : here_(std::move(here)), shared_(std::move(s)) {}
  ~part_listener() override { close(); }

  asio::any_io_executor get_executor() const noexcept override { return here_; }
  endpoint local_endpoint() const override { return shared_->at; }
  void accept(listener::handler done) override {
    detail::run_as_operation(here_, accept(stop_, here_, shared_), std::move(done));
  }
  void close() override { stop_->close(); }

 private:
  // What ends an accept from outside of it.
  struct stopper {
    task_group* scope = nullptr;
    bool closed = false;
    void close() {
      closed = true;
      if (scope) scope->cancel();
    }
  };

  static awaitable<result<byte_stream>> accept(std::shared_ptr<stopper> stop, asio::any_io_executor here, shared s) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (stop->closed) co_return asio::error::operation_aborted;
    result<byte_stream> came = error_code(asio::error::operation_aborted);
    auto ended = co_await with(task_group{}, [&](task_group& scope) -> awaitable<void> {
      stop->scope = &scope;
      came = co_await accept_here(here, s);
    });
    stop->scope = nullptr;
    if (!came && !ended) co_return ended.error();
    co_return came;
  }

  asio::any_io_executor here_;
  shared shared_;
  std::shared_ptr<stopper> stop_ = std::make_shared<stopper>();
};

}  // namespace

shared_listener::shared_listener(const asio::any_io_executor& owner, const endpoint& at, int backlog)
    : state_(std::make_shared<state>(owner)) {
  error_code ec;
  if (at.is_local()) {
    ec = errc::unsupported;
  } else if (owner.target<sim_context::executor_type>()) {
    auto made = network::of(owner).listen(at, backlog);
    made ? void(state_->simulated = std::move(*made)) : void(ec = made.error());
    if (made) state_->at = state_->simulated.local_endpoint();
  } else {
    auto made = detail::open_tcp_acceptor(owner, at, backlog);
    made ? void(state_->door.emplace(std::move(*made))) : void(ec = made.error());
    if (made) state_->at = detail::to_endpoint(state_->door->local_endpoint());
  }
  if (ec) throw boost::system::system_error(ec);
}

endpoint shared_listener::local_endpoint() const { return state_->at; }

void shared_listener::close() {
  state_->closed = true;
  error_code ignored;
  if (state_->door) state_->door->close(ignored);
  state_->simulated.close();
}

listener shared_listener::part(const asio::any_io_executor& here) const {
  return listener(std::make_unique<part_listener>(here, state_));
}

}  // namespace cokv

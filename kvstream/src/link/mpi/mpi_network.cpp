#include "link/mpi/mpi_network.hpp"

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/mpi/mpi_channel.hpp"

namespace cokv::detail {
namespace {

class mpi_stream final : public byte_stream::impl {
 public:
  explicit mpi_stream(std::shared_ptr<mpi_channel> c) : channel_(std::move(c)), executor_(channel_->executor()) {}
  ~mpi_stream() override { channel_->close(); }

  asio::any_io_executor get_executor() const noexcept override { return executor_.get(); }
  void read_some(const byte_stream::mutable_buffers& into, byte_stream::handler done) override {
    initiate<void(error_code, std::size_t)>(std::move(done), executor_,
                                            [&](mpi_transfer& op) { channel_->read(into, op); });
  }
  void write_some(const byte_stream::const_buffers& from, byte_stream::handler done) override {
    initiate<void(error_code, std::size_t)>(std::move(done), executor_,
                                            [&](mpi_transfer& op) { channel_->write(from, op); });
  }
  void shutdown_send() override { channel_->say_end(); }
  void close() override { channel_->close(); }
  bool is_open() const override { return channel_->open(); }
  std::string peer() const override { return "rank " + std::to_string(channel_->rank()); }
  bool keeps() const override { return true; }
  void keep(std::shared_ptr<void> memory) override { channel_->keep(std::move(memory)); }

 private:
  std::shared_ptr<mpi_channel> channel_;
  prepared_executor executor_;
};

class mpi_door final : public listener::impl {
 public:
  explicit mpi_door(mpi_port& port) : port_(port), executor_(port.executor()) {}
  ~mpi_door() override { close(); }

  asio::any_io_executor get_executor() const noexcept override { return executor_.get(); }
  void accept(listener::handler done) override {
    initiate<void(error_code, byte_stream)>(std::move(done), executor_, [&](mpi_accept& op) {
      open_ ? port_.accept(op) : op.complete(asio::error::operation_aborted, {});
    });
  }
  // A rank is to the job what a port is to a host.
  endpoint local_endpoint() const override { return {{}, static_cast<std::uint16_t>(port_.process().rank())}; }
  void close() override {
    if (std::exchange(open_, false)) port_.close_door();
  }

 private:
  mpi_port& port_;
  prepared_executor executor_;
  bool open_ = true;
};

}  // namespace

byte_stream mpi_stream_of(std::shared_ptr<mpi_channel> channel) {
  return byte_stream(std::make_unique<mpi_stream>(std::move(channel)));
}

awaitable<result<byte_stream>> connect_mpi(int rank) {
  auto port = mpi_port::of(co_await asio::this_coro::executor);
  if (!port) co_return port.error();
  if (rank < 0 || rank >= (*port)->process().size()) co_return errc::invalid_argument;
  auto channel = (*port)->call(rank);
  auto stream = mpi_stream_of(channel);  // an abandoned call is closed
  auto wait = [&](operation<void(error_code)>& op) { channel->await_answer(op); };
  auto answered = co_await initiate<void(error_code)>(as_result, (*port)->executor(), wait);
  if (!answered) co_return answered.error();
  co_return stream;
}

result<listener> listen_mpi(const asio::any_io_executor& ex) {
  auto port = mpi_port::of(ex);
  if (!port) return port.error();
  if (auto ec = (*port)->open_door()) return ec;
  return listener(std::make_unique<mpi_door>(**port));
}

}  // namespace cokv::detail

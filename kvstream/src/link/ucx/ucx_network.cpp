#include "link/ucx/ucx_network.hpp"

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/ucx/ucx_channel.hpp"
#include "link/ucx/ucx_door.hpp"

namespace cokv::detail {
namespace {

using tcp = asio::ip::tcp;

class ucx_stream final : public byte_stream::impl {
 public:
  explicit ucx_stream(std::shared_ptr<ucx_channel> c) : channel_(std::move(c)), executor_(channel_->executor()) {}
  ~ucx_stream() override { channel_->close(); }

  asio::any_io_executor get_executor() const noexcept override { return executor_.get(); }
  void read_some(const byte_stream::mutable_buffers& into, byte_stream::handler done) override {
    initiate<void(error_code, std::size_t)>(std::move(done), executor_,
                                            [&](ucx_transfer& op) { channel_->read(into, op); });
  }
  void write_some(const byte_stream::const_buffers& from, byte_stream::handler done) override {
    initiate<void(error_code, std::size_t)>(std::move(done), executor_,
                                            [&](ucx_transfer& op) { channel_->write(from, op); });
  }
  void shutdown_send() override { channel_->say_end(); }
  void close() override { channel_->close(); }
  bool is_open() const override { return channel_->open(); }
  std::string peer() const override { return channel_->peer(); }
  bool keeps() const override { return true; }
  void keep(std::shared_ptr<void> memory) override { channel_->keep(std::move(memory)); }

 private:
  std::shared_ptr<ucx_channel> channel_;
  prepared_executor executor_;
};

// Loopback and addresses need no resolver, which would start a thread.
result<tcp::endpoint> known(const endpoint& e) {
  if (e.host.empty() || e.host == "localhost") return tcp::endpoint(asio::ip::address_v4::loopback(), e.port);
  error_code ec;
  const auto address = asio::ip::make_address(e.host, ec);
  if (ec) return ec;
  return tcp::endpoint(address, e.port);
}

awaitable<result<byte_stream>> call(ucx_port& port, tcp::endpoint to) {
  auto channel = port.call(to);
  if (!channel) co_return channel.error();
  auto stream = ucx_stream_of(*channel);  // an abandoned call is closed
  auto wait = [&](operation<void(error_code)>& op) { (*channel)->await_greeting(op); };
  auto greeted = co_await initiate<void(error_code)>(as_result, port.executor(), wait);
  if (!greeted) co_return greeted.error();
  co_return stream;
}

}  // namespace

byte_stream ucx_stream_of(std::shared_ptr<ucx_channel> channel) {
  return byte_stream(std::make_unique<ucx_stream>(std::move(channel)));
}

awaitable<result<byte_stream>> connect_ucx(endpoint to) {
  const auto ex = co_await asio::this_coro::executor;
  auto port = ucx_port::of(ex);
  if (!port) co_return port.error();
  if (auto at = known(to)) co_return co_await call(**port, *at);
  tcp::resolver resolver(ex);
  auto found = co_await resolver.async_resolve(to.host, std::to_string(to.port), as_result);
  if (!found) co_return found.error();
  result<byte_stream> last = make_error_code(asio::error::host_not_found);
  for (const auto& entry : *found) {
    last = co_await call(**port, entry.endpoint());
    if (last || last.error() == asio::error::operation_aborted) break;
  }
  co_return last;
}

result<listener> listen_ucx(const asio::any_io_executor& ex, const endpoint& at) {
  auto port = ucx_port::of(ex);
  if (!port) return port.error();
  auto local = known(at);
  if (!local) {
    error_code ec;
    tcp::resolver resolver(ex);
    const auto found = resolver.resolve(at.host, std::to_string(at.port), tcp::resolver::passive, ec);
    if (ec) return ec;
    local = found.begin()->endpoint();
  }
  auto door = std::make_unique<ucx_door>(**port);
  if (auto ec = door->open(*local)) return ec;
  return listener(std::move(door));
}

}  // namespace cokv::detail

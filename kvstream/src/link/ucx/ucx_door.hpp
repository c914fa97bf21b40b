// Who calls, until they are accepted. A call becomes an endpoint when somebody takes it.
#pragma once

#include <deque>

#include "link/ucx/ucx_port.hpp"

namespace cokv::detail {

using ucx_accept = operation<void(error_code, byte_stream)>;

class ucx_door final : public listener::impl {
 public:
  explicit ucx_door(ucx_port& port) : port_(port), executor_(port.executor()) {}
  ~ucx_door() override { close(); }

  asio::any_io_executor get_executor() const noexcept override { return executor_.get(); }
  void accept(listener::handler done) override;
  endpoint local_endpoint() const override { return at_; }
  void close() override;

  error_code open(const asio::ip::tcp::endpoint& at);
  // The port's.
  void called(ucp_conn_request_h request);
  void take_callers();

 private:
  ucx_port& port_;
  prepared_executor executor_;
  bool open_ = false;
  endpoint at_;
  std::deque<ucp_conn_request_h> callers_;
  operation_list<ucx_accept> accepting_;
};

}  // namespace cokv::detail

#include "link/ucx/ucx_door.hpp"

#include "cokv/runtime/detail/initiate.hpp"
#include "link/ucx/ucx_channel.hpp"
#include "link/ucx/ucx_network.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_callers = 64;

}  // namespace

error_code ucx_door::open(const asio::ip::tcp::endpoint& at) {
  auto bound = port_.open_door(*this, at);
  if (!bound) return bound.error();
  open_ = true;
  at_ = {bound->address().to_string(), bound->port()};
  return {};
}

void ucx_door::accept(listener::handler done) {
  initiate<void(error_code, byte_stream)>(std::move(done), executor_, [&](ucx_accept& op) {
    if (!open_) return op.complete(asio::error::operation_aborted, {});
    accepting_.push_back(op);
    take_callers();
    port_.touched();
  });
}

void ucx_door::called(ucp_conn_request_h request) {
  if (callers_.size() == most_callers) return port_.reject(*this, request);
  callers_.push_back(request);
}

void ucx_door::take_callers() {
  while (!callers_.empty() && !accepting_.empty()) {
    auto* const request = callers_.front();
    callers_.pop_front();
    auto channel = port_.take(request);  // failing: the caller has gone
    if (channel) accepting_.front().complete({}, ucx_stream_of(std::move(*channel)));
  }
}

void ucx_door::close() {
  if (!std::exchange(open_, false)) return;
  for (auto* r : std::exchange(callers_, {})) port_.reject(*this, r);
  port_.close_door(*this);
  accepting_.complete_all(asio::error::operation_aborted);
}

}  // namespace cokv::detail

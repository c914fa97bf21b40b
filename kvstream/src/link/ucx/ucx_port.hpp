// A context's way over UCX: a worker of its own, whose event descriptor the loop waits for, so that nothing is polled
// while nothing happens. Makes the calls by which streams begin, and hands what comes to them.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"
#include "cokv/runtime/detail/unique_function.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/progress.hpp"
#include "link/ucx/ucx_api.hpp"

namespace cokv::detail {

class ucx_channel;
class ucx_door;

// Before the bytes of every message.
struct ucx_head {
  enum class what : std::uint8_t { hello = 1, bytes = 2, end = 3, taken = 4 };
  what kind = what::bytes;
  std::uint8_t version = 1;
  std::uint16_t magic = 0x6b63;  // "ck"
  std::uint32_t number = 0;      // of bytes and end: counted from 0; of taken: how many bytes the reader has taken more
};
static_assert(sizeof(ucx_head) == 8);

class ucx_port final : public asio::execution_context::service, public progress_source {
 public:
  inline static asio::execution_context::id id;
  explicit ucx_port(asio::execution_context& context) : service(context) {}

  // Errors: errc::unsupported without UCX and in virtual time; UCX's own.
  static result<ucx_port*> of(const asio::any_io_executor& ex);

  const ucx_api& api() const noexcept { return api_; }
  ucp_worker_h worker() const noexcept { return worker_; }
  const prepared_executor& executor() const noexcept { return executor_; }
  clock& time() const noexcept { return *time_; }

  // A stream whose peer has not greeted yet.
  result<std::shared_ptr<ucx_channel>> call(const asio::ip::tcp::endpoint& to);
  result<std::shared_ptr<ucx_channel>> take(ucp_conn_request_h request);
  result<asio::ip::tcp::endpoint> open_door(ucx_door& door, const asio::ip::tcp::endpoint& at);
  void close_door(ucx_door& door);
  void reject(ucx_door& door, ucp_conn_request_h request);
  // Nothing comes from there any more; what is under way ends soon.
  void hang_up(ucp_ep_h ep);

  // Sends without waiting; `done` is called when UCX has read the bytes, maybe at once. They live until then.
  using outcome = unique_function<void(error_code)>;
  enum class how { at_once, when_wanted };  // the peer takes a copy, or asks for the bytes when it has a place for them
  void send(ucp_ep_h to, ucx_head head, std::span<const asio::const_buffer> bytes, how way, outcome done);
  void receive(void* offer, std::size_t bytes, const std::vector<ucp_dt_iov_t>& into, outcome done);

  // Somebody here waits for something new.
  void touched();

  std::size_t poll() override;
  bool awaited() const override;
  void arm() override;

 private:
  struct request {
    ucx_port* port = nullptr;
    ucx_head head;
    outcome done;
    std::vector<ucp_dt_iov_t> parts = {};  // UCX reads it until then
  };

  error_code start(const asio::any_io_executor& ex);
  void shutdown() override;
  bool needed() const;
  bool has_door() const;
  void progress_for(duration most, unique_function<bool()> while_true);
  result<std::shared_ptr<ucx_channel>> open(ucp_ep_params_t how, std::string peer);
  bool arrived(const ucx_head& head, void* data, std::size_t bytes, const ucp_am_recv_param_t& about);
  void track(ucs_status_ptr_t r, std::unique_ptr<request> what);
  static void over(void* r, ucs_status_t status, void* what);
  void hang_up_now();
  void watch();

  ucx_api api_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  prepared_executor executor_;
  clock* time_ = nullptr;
  std::optional<asio::posix::stream_descriptor> events_;
  bool watching_ = false, posted_ = false, polling_ = false;

  std::map<ucp_ep_h, std::shared_ptr<ucx_channel>> channels_;
  // A listener that is destroyed while somebody is calling makes UCX call what is gone: it lives as long as the worker,
  // and rejects who calls while it is nobody's door.
  // Whoever it has let in and not told us of yet makes it call what is gone all the same
  // (github.com/openucx/ucx/issues/11087): at the end our own callers get a moment to be told of.
  struct entrance {
    ucx_port* port = nullptr;
    ucp_listener_h listener = nullptr;
    ucx_door* door = nullptr;
    asio::ip::tcp::endpoint at;
    std::uint64_t calls = 0, heard = 0;  // our own; anybody's
  };
  std::vector<std::unique_ptr<entrance>> entrances_;
  std::vector<ucp_ep_h> unwanted_;  // to be closed
  std::unordered_set<request*> requests_;
};

}  // namespace cokv::detail

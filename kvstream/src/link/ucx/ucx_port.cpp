#include "link/ucx/ucx_port.hpp"

#include <algorithm>
#include <cstring>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "link/ucx/ucx_channel.hpp"
#include "link/ucx/ucx_door.hpp"

namespace cokv::detail {
namespace {

constexpr unsigned message_id = 1;
constexpr int most_tries = 16;  // to sleep, before others have their turn
constexpr auto patience = std::chrono::milliseconds(200);
constexpr auto a_moment = std::chrono::milliseconds(50);

std::string text_of(const asio::ip::tcp::endpoint& at) {
  return endpoint{at.address().to_string(), at.port()}.to_string();
}

ucs_sock_addr_t raw(const asio::ip::tcp::endpoint& at) { return {at.data(), static_cast<socklen_t>(at.size())}; }

}  // namespace

result<ucx_port*> ucx_port::of(const asio::any_io_executor& ex) {
  if (ex.target<sim_context::executor_type>()) return errc::unsupported;  // it knows real time alone
  auto& port = asio::use_service<ucx_port>(asio::query(ex, asio::execution::context));
  if (!port.worker_)
    if (auto ec = port.start(ex)) return ec;
  return &port;
}

error_code ucx_port::start(const asio::any_io_executor& ex) {
  auto api = ucx_api::load();
  if (!api) return api.error();
  api_ = *api;
  ucp_config_t* config = nullptr;
  if (auto s = api_.config_read(nullptr, nullptr, &config)) return ucx_error(s);
  ucp_params_t p{};
  p.field_mask = UCP_PARAM_FIELD_FEATURES;
  p.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  auto s = api_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &p, config, &context_);
  api_.config_release(config);
  if (s) return ucx_error(s);
  ucp_worker_params_t w{};
  w.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  w.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  s = api_.worker_create(context_, &w, &worker);
  int fd = -1;
  if (!s) s = api_.worker_get_efd(worker, &fd);
  ucp_am_handler_param_t h{};
  h.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                 UCP_AM_HANDLER_PARAM_FIELD_ARG;
  h.id = message_id;
  h.flags = UCP_AM_FLAG_WHOLE_MSG;
  h.arg = this;
  h.cb = [](void* self, const void* head, std::size_t head_bytes, void* data, std::size_t bytes,
            const ucp_am_recv_param_t* about) {
    ucx_head what;
    if (head_bytes != sizeof what) return UCS_OK;  // whoever this is, it is no stream's peer
    std::memcpy(&what, head, sizeof what);
    return static_cast<ucx_port*>(self)->arrived(what, data, bytes, *about) ? UCS_INPROGRESS : UCS_OK;
  };
  if (!s) s = api_.worker_set_am_recv_handler(worker, &h);
  if (s) {
    if (worker) api_.worker_destroy(worker);
    api_.cleanup(context_);
    return ucx_error(s);
  }
  worker_ = worker;
  // It lives as long as the context: no work.
  const asio::any_io_executor own =
      asio::prefer(ex, asio::execution::outstanding_work.untracked, asio::execution::blocking.possibly);
  executor_ = prepared_executor(own);
  time_ = &clock::of(own);
  events_.emplace(own, fd);
  progress::of(own).add(*this);
  return {};
}

result<std::shared_ptr<ucx_channel>> ucx_port::open(ucp_ep_params_t how, std::string peer) {
  how.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  how.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  how.err_handler.arg = this;
  how.err_handler.cb = [](void* self, ucp_ep_h ep, ucs_status_t why) {
    auto& channels = static_cast<ucx_port*>(self)->channels_;
    if (const auto at = channels.find(ep); at != channels.end()) std::shared_ptr(at->second)->fail(ucx_error(why));
  };
  ucp_ep_h ep = nullptr;
  if (auto s = api_.ep_create(worker_, &how, &ep)) return ucx_error(s);
  auto channel = std::make_shared<ucx_channel>(*this, std::move(peer));
  channels_.emplace(ep, channel);
  channel->begin(ep);
  touched();
  return channel;
}

result<std::shared_ptr<ucx_channel>> ucx_port::call(const asio::ip::tcp::endpoint& to) {
  ucp_ep_params_t p{};
  p.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  p.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  p.sockaddr = raw(to);
  for (const auto& e : entrances_)
    if (e->at == to) ++e->calls;
  return open(p, text_of(to));
}

result<std::shared_ptr<ucx_channel>> ucx_port::take(ucp_conn_request_h request) {
  ucp_ep_params_t p{};
  p.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  p.conn_request = request;
  return open(p, "ucx");
}

result<asio::ip::tcp::endpoint> ucx_port::open_door(ucx_door& door, const asio::ip::tcp::endpoint& at) {
  for (const auto& e : entrances_)
    if (e->at == at && !e->door) return e->door = &door, touched(), at;
  auto made = std::make_unique<entrance>();
  made->port = this;
  ucp_listener_params_t p{};
  p.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  p.sockaddr = raw(at);
  p.conn_handler.cb = [](ucp_conn_request_h r, void* where) {
    auto& e = *static_cast<entrance*>(where);
    ++e.heard;
    e.door ? e.door->called(r) : (void)e.port->api_.listener_reject(e.listener, r);
  };
  p.conn_handler.arg = made.get();
  if (auto s = api_.listener_create(worker_, &p, &made->listener)) return ucx_error(s);
  ucp_listener_attr_t a{};
  a.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  api_.listener_query(made->listener, &a);
  made->at = at;
  std::memcpy(made->at.data(), &a.sockaddr, at.size());
  made->door = &door;
  touched();
  return entrances_.emplace_back(std::move(made))->at;
}

void ucx_port::reject(ucx_door& door, ucp_conn_request_h request) {
  for (const auto& e : entrances_)
    if (e->door == &door) api_.listener_reject(e->listener, request);
}

void ucx_port::close_door(ucx_door& door) {
  for (const auto& e : entrances_)
    if (e->door == &door) e->door = nullptr;
  touched();
}

void ucx_port::hang_up(ucp_ep_h ep) {
  channels_.erase(ep);
  unwanted_.push_back(ep);  // an endpoint is not closed inside one of its callbacks
  touched();
}

void ucx_port::hang_up_now() {
  for (auto* ep : std::exchange(unwanted_, {})) {
    ucp_request_param_t p{};
    p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    p.flags = UCP_EP_CLOSE_FLAG_FORCE;
    p.cb.send = over;
    auto what = std::make_unique<request>(request{this, {}, [](error_code) {}});
    p.user_data = what.get();
    track(api_.ep_close_nbx(ep, &p), std::move(what));
  }
}

bool ucx_port::arrived(const ucx_head& head, void* data, std::size_t bytes, const ucp_am_recv_param_t& about) {
  if (!(about.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)) return false;
  const auto at = channels_.find(about.reply_ep);
  if (at == channels_.end()) return false;
  const auto how = about.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV   ? ucx_channel::coming::offered
                   : about.recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA ? ucx_channel::coming::to_keep
                                                                  : ucx_channel::coming::for_now;
  return std::shared_ptr(at->second)->arrived(head, data, bytes, how);
}

void ucx_port::send(ucp_ep_h to, ucx_head head, std::span<const asio::const_buffer> bytes, how way, outcome done) {
  auto what = std::make_unique<request>(request{this, head, std::move(done)});
  ucp_request_param_t p{};
  p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  p.flags = UCP_AM_SEND_FLAG_REPLY | (way == how::at_once ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV);
  p.cb.send = over;
  p.user_data = what.get();
  const auto& h = what->head;
  const void* data = bytes.empty() ? nullptr : bytes[0].data();
  std::size_t n = bytes.empty() ? 0 : bytes[0].size();
  if (bytes.size() > 1) {
    for (const auto& b : bytes) what->parts.push_back({const_cast<void*>(b.data()), b.size()});
    p.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    p.datatype = ucp_dt_make_iov();
    data = what->parts.data();
    n = what->parts.size();
  }
  track(api_.am_send_nbx(to, message_id, &h, sizeof h, data, n, &p), std::move(what));
}

void ucx_port::receive(void* offer, std::size_t bytes, const std::vector<ucp_dt_iov_t>& into, outcome done) {
  auto what = std::make_unique<request>(request{this, {}, std::move(done)});
  ucp_request_param_t p{};
  p.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  p.cb.recv_am = [](void* r, ucs_status_t status, std::size_t, void* w) { over(r, status, w); };
  p.user_data = what.get();
  if (into.size() == 1) return track(api_.am_recv_data_nbx(worker_, offer, into[0].buffer, bytes, &p), std::move(what));
  p.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
  p.datatype = ucp_dt_make_iov();
  auto* parts = const_cast<ucp_dt_iov_t*>(into.data());
  track(api_.am_recv_data_nbx(worker_, offer, parts, into.size(), &p), std::move(what));
}

void ucx_port::track(ucs_status_ptr_t r, std::unique_ptr<request> what) {
  if (UCS_PTR_IS_PTR(r)) return (void)requests_.insert(what.release());
  what->done(ucx_error(UCS_PTR_STATUS(r)));
}

void ucx_port::over(void* r, ucs_status_t status, void* what) {
  const std::unique_ptr<request> mine(static_cast<request*>(what));
  mine->port->api_.request_free(r);
  mine->port->requests_.erase(mine.get());
  mine->done(ucx_error(status));
}

std::size_t ucx_port::poll() {
  if (!worker_ || polling_) return 0;
  polling_ = true;
  std::size_t n = 0;
  while (const auto found = api_.worker_progress(worker_)) n += found;
  for (std::size_t i = 0; i < entrances_.size(); ++i)
    if (auto* door = entrances_[i]->door) door->take_callers();
  hang_up_now();
  polling_ = false;
  if (watching_ && !needed()) events_->cancel();
  return n;
}

bool ucx_port::needed() const {
  return worker_ && (!channels_.empty() || has_door() || !unwanted_.empty() || !requests_.empty());
}

bool ucx_port::has_door() const {
  return std::ranges::any_of(entrances_, [](const auto& e) { return e->door != nullptr; });
}

bool ucx_port::awaited() const { return needed(); }

void ucx_port::arm() {
  for (int tries = 0; needed(); ++tries) {
    const auto s = api_.worker_arm(worker_);
    if (s != UCS_ERR_BUSY) break;
    if (tries == most_tries) return touched();
    poll();
  }
  if (!unwanted_.empty()) return touched();
  if (needed()) watch();
}

void ucx_port::watch() {
  if (std::exchange(watching_, true)) return;
  events_->async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code ec) {
    watching_ = false;
    if (ec && !needed()) return;
    poll();
    arm();
  });
}

// Also under run(), which does not come to poll while there are handlers to run.
void ucx_port::touched() {
  if (posted_ || !worker_) return;
  posted_ = true;
  executor_.post([this] {
    posted_ = false;
    poll();
    arm();
  });
}

void ucx_port::progress_for(duration most, unique_function<bool()> while_true) {
  const auto until = time_->now() + most;
  while (while_true() && time_->now() < until) {
    while (api_.worker_progress(worker_)) continue;
    hang_up_now();
  }
}

// Peers hear of the end. When the worker is gone, nothing writes our memory.
void ucx_port::shutdown() {
  if (!worker_) return;
  posted_ = true;
  for (const auto& e : entrances_)
    if (e->door) e->door->close();
  std::vector<std::shared_ptr<ucx_channel>> all;
  for (const auto& [ep, c] : channels_) all.push_back(c);
  for (const auto& c : all) c->say_end();
  progress_for(patience, [&] { return std::ranges::any_of(all, [](const auto& c) { return c->sending(); }); });
  for (const auto& c : all) c->fail(errc::closed);
  hang_up_now();
  progress_for(patience, [&] { return !requests_.empty(); });
  progress_for(a_moment, [&] { return std::ranges::any_of(entrances_, [](auto& e) { return e->calls > e->heard; }); });
  for (const auto& e : entrances_) api_.listener_destroy(e->listener);
  events_->release();
  events_.reset();
  api_.worker_destroy(std::exchange(worker_, nullptr));
  for (auto* r : std::exchange(requests_, {})) delete r;
  api_.cleanup(context_);
}

}  // namespace cokv::detail

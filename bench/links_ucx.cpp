// How close does a link over UCX come to the loop of ucp_am_send_nbx and ucp_am_recv_data_nbx that one would write by hand?
// Chunks of 4 KiB to 16 MiB go from one process to another, from a working set beyond the cache into another; both sides
// of a ratio take turns in one run. The loop has as much under way, and is answered once, at its end; a put is answered
// by itself, when it is visible. Processor seconds are of both processes.
//
//     bench_links_ucx [--bytes 256MiB] [--set 64MiB] [--repeat 7] [--connections 1] [--from 4KiB] [--to 16MiB]
//         [--json FILE]
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <csignal>
#include <cstring>
#include <deque>

#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "link/ucx/ucx_api.hpp"
#include "link_table.hpp"
#include "words.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

// Messages of the loop by hand: 8 MiB of them, 16 at least and 128 at most, as many as a transfer_group has puts.
std::size_t outstanding(std::size_t chunk) { return std::clamp<std::size_t>((8 << 20) / chunk, 16, 128); }

// UCX by hand: a worker that is polled, and one endpoint.
class by_hand {
 public:
  explicit by_hand(const buffer& memory) : memory_(memory) {
    auto loaded = detail::ucx_api::load();
    must(loaded.has_value(), "loading UCX");
    ucx_ = *loaded;
    ucp_config_t* config = nullptr;
    must(ucx_.config_read(nullptr, nullptr, &config) == UCS_OK, "ucp_config_read");
    ucp_params_t p{};
    p.field_mask = UCP_PARAM_FIELD_FEATURES;
    p.features = UCP_FEATURE_AM;
    must(ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &p, config, &context_) == UCS_OK, "ucp_init");
    ucx_.config_release(config);
    ucp_worker_params_t w{};
    must(ucx_.worker_create(context_, &w, &worker_) == UCS_OK, "ucp_worker_create");
    ucp_am_handler_param_t h{};
    h.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                   UCP_AM_HANDLER_PARAM_FIELD_ARG;
    h.id = 1;
    h.flags = UCP_AM_FLAG_WHOLE_MSG;
    h.arg = this;
    h.cb = [](void* self, const void*, std::size_t, void* data, std::size_t n, const ucp_am_recv_param_t* about) {
      return static_cast<by_hand*>(self)->came(data, n, about->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
    };
    must(ucx_.worker_set_am_recv_handler(worker_, &h) == UCS_OK, "ucp_worker_set_am_recv_handler");
  }

  std::uint16_t listen() {
    auto at = asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), 0);
    ucp_listener_params_t p{};
    p.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    p.sockaddr = {at.data(), static_cast<socklen_t>(at.size())};
    p.conn_handler.arg = this;
    p.conn_handler.cb = [](ucp_conn_request_h r, void* self) { static_cast<by_hand*>(self)->caller_ = r; };
    ucp_listener_h listener = nullptr;
    must(ucx_.listener_create(worker_, &p, &listener) == UCS_OK, "ucp_listener_create");
    ucp_listener_attr_t a{};
    a.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    must(ucx_.listener_query(listener, &a) == UCS_OK, "ucp_listener_query");
    std::memcpy(at.data(), &a.sockaddr, at.size());
    return at.port();
  }
  void accept() {
    while (!caller_) ucx_.worker_progress(worker_);
    ucp_ep_params_t p{};
    p.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    p.conn_request = caller_;
    open(p);
    std::deque<ucs_status_ptr_t> here{begin(memory_.data(), 1)};
    finish(here);
  }
  void connect(std::uint16_t port) {
    auto at = asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), port);
    ucp_ep_params_t p{};
    p.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    p.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    p.sockaddr = {at.data(), static_cast<socklen_t>(at.size())};
    open(p);
    while (came_ == 0) ucx_.worker_progress(worker_);  // it is accepted
  }

  void send(const link_settings& s, std::size_t chunk) {
    came_ = 0;
    std::deque<ucs_status_ptr_t> under_way;
    for (std::size_t moved = 0; moved < s.bytes; moved += chunk) {
      if (under_way.size() == outstanding(chunk)) finish(under_way);
      under_way.push_back(begin(memory_.data() + moved % memory_.size(), chunk));
    }
    while (!under_way.empty()) finish(under_way);
    while (came_ == 0) ucx_.worker_progress(worker_);  // the receiver has all of it
  }
  void receive(const link_settings& s, std::size_t chunk) {
    while (came_ < s.bytes / chunk) ucx_.worker_progress(worker_);
    came_ = at_ = 0;
    std::deque<ucs_status_ptr_t> answer{begin(memory_.data(), 1)};
    finish(answer);
    for (int i = 0; i < 100; ++i) ucx_.worker_progress(worker_);
  }

 private:
  void open(ucp_ep_params_t p) {
    p.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    p.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    p.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    must(ucx_.ep_create(worker_, &p, &ep_) == UCS_OK, "ucp_ep_create");
  }
  ucs_status_ptr_t begin(const std::byte* from, std::size_t n) {
    ucp_request_param_t p{};
    p.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    auto* done = new bool(false);
    p.user_data = done;
    p.cb.send = [](void*, ucs_status_t status, void* d) { *static_cast<bool*>(d) = status == UCS_OK; };
    auto* r = ucx_.am_send_nbx(ep_, 1, nullptr, 0, from, n, &p);
    must(!UCS_PTR_IS_ERR(r), "ucp_am_send_nbx");
    if (!r) *done = true;
    flags_.push_back(done);
    return r;
  }
  void finish(std::deque<ucs_status_ptr_t>& under_way) {
    while (!*flags_.front()) ucx_.worker_progress(worker_);
    if (under_way.front()) ucx_.request_free(under_way.front());
    under_way.pop_front();
    delete flags_.front();
    flags_.pop_front();
  }
  ucs_status_t came(void* data, std::size_t n, bool offered) {
    if (at_ + n > memory_.size()) at_ = 0;
    auto* to = memory_.data() + at_;
    if (n > 1) at_ += n;
    if (!offered) {
      if (n > 1) std::memcpy(to, data, n);
      ++came_;
      return UCS_OK;
    }
    ucp_request_param_t p{};
    p.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    p.user_data = this;
    p.cb.recv_am = [](void* r, ucs_status_t, std::size_t, void* self) {
      static_cast<by_hand*>(self)->ucx_.request_free(r);
      ++static_cast<by_hand*>(self)->came_;
    };
    auto* r = ucx_.am_recv_data_nbx(worker_, data, to, n, &p);
    must(!UCS_PTR_IS_ERR(r), "ucp_am_recv_data_nbx");
    if (!r) ++came_;
    return UCS_INPROGRESS;
  }

  buffer memory_;
  detail::ucx_api ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h ep_ = nullptr;
  ucp_conn_request_h caller_ = nullptr;
  std::deque<bool*> flags_;
  std::size_t came_ = 0, at_ = 0;
};

struct told {
  std::uint16_t by_hand = 0, off = 0, on = 0;
  window_ref landing;
};

std::uint16_t port_of(const link_listener& door) {
  const auto url = door.url();
  return static_cast<std::uint16_t>(std::stoul(url.substr(url.rfind(':') + 1)));
}
std::uint32_t connections = 1;

link_options options(digest_algorithm digest) {
  return {.digest = digest, .connections = connections, .silence = std::chrono::minutes(5)};
}

[[noreturn]] void receiver(const link_settings& s, int to) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto memory = buffer::host(s.set);
  std::memset(memory.data(), 0, memory.size());
  by_hand raw(memory);
  asio::io_context context(1);
  window_table windows(context.get_executor());
  auto off = link_listener::listen(windows, "ucx://localhost:0", options(digest_algorithm::none)).value();
  auto on = link_listener::listen(windows, "ucx://localhost:0", options(digest_algorithm::xxh3_64)).value();
  auto landing = windows.expose({memory}, window_access::put).value();
  const told t{raw.listen(), port_of(off), port_of(on), landing.ref()};
  must(::write(to, &t, sizeof t) == sizeof t, "a pipe");
  raw.accept();
  asio::co_spawn(
      context,
      [&]() -> awaitable<void> {
        auto plain = co_await off.async_accept(), digested = co_await on.async_accept();
        for (;;) raw.receive(s, co_await hear<std::size_t>(plain));
      },
      asio::detached);
  cokv::run(context);
  std::_Exit(0);
}

awaitable<void> compare(link_settings s, told peer, by_hand& raw, buffer memory) {
  window_table windows(co_await asio::this_coro::executor);
  const auto url = [](std::uint16_t port) { return "ucx://localhost:" + std::to_string(port); };
  auto off = co_await async_connect(windows, url(peer.off), options(digest_algorithm::none));
  auto on = co_await async_connect(windows, url(peer.on), options(digest_algorithm::xxh3_64));
  std::printf("ucx between two processes, %s a run, medians of %d\n\n", format_size(s.bytes).c_str(), s.repeat);
  link_table table("ucx", "chunk", {{"raw", "active messages", true}, {"link", "link"}, {"digest", "with digests"}});
  table.heading();
  for (auto chunk : s.chunks()) {
    for (int r = 0; r < s.repeat; ++r) {
      co_await say(off, chunk);
      // It is on its way when the loop has had its turn.
      co_await clock::of(co_await asio::this_coro::executor).async_wait_for(std::chrono::milliseconds(1));
      std::vector<throughput> round{timed(s.bytes, [&] { raw.send(s, chunk); })};
      for (auto* link : {&off, &on}) {
        stopwatch watch;
        co_await put_all(link->to(peer.landing), memory, s.bytes, chunk);
        round.push_back(watch.over(s.bytes));
      }
      table.add(std::move(round));
    }
    table.row(chunk);
  }
  table.write(s.json);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How close does a link over UCX come to a hand-written loop of active messages?"};
  link_settings s;
  s.add_to(app);
  app.add_option("--connections", connections, "of the link")->check(CLI::Range(1, 64));
  CLI11_PARSE(app, argc, argv);

  int ends[2];
  must(::pipe(ends) == 0, "pipe");
  const auto child = ::fork();
  if (child == 0) receiver(s, ends[1]);
  count_process(child);
  ::close(ends[1]);
  told peer;
  must(::read(ends[0], &peer, sizeof peer) == sizeof peer, "starting the receiver");
  auto memory = buffer::host(s.set);
  fill(memory);
  by_hand raw(memory);
  raw.connect(peer.by_hand);
  asio::io_context context(1);
  asio::co_spawn(context, compare(s, peer, raw, memory), [&](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
    context.stop();
  });
  cokv::run(context);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::fflush(stdout);
  std::_Exit(0);
}

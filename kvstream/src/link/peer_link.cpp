#include "cokv/kvstream/peer_link.hpp"

#include "cokv/runtime/detail/require.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "link/link_session.hpp"

namespace cokv {
namespace {

class link_sink final : public detail::sink_backend {
 public:
  link_sink(std::shared_ptr<detail::link_session> s, window_ref w) : session_(std::move(s)), window_(w) {}
  asio::any_io_executor get_executor() const override { return session_->executor().get(); }
  std::uint64_t size() const override { return window_.size; }
  completion_level reach() const override { return completion_level::visible; }
  awaitable<error_code> put(std::uint64_t offset, std::vector<buffer> pieces, event begin,
                            completion_level level) override {
    return session_->put(window_, offset, std::move(pieces), std::move(begin), level);
  }
  awaitable<error_code> commit() override { return session_->commit(window_); }
  bool puts_at_once(const buffer& chunk) const override { return session_->puts_at_once(window_, chunk); }
  void begin_put(std::uint64_t offset, buffer chunk, detail::transfer_operation& op) noexcept override {
    session_->begin_put(window_, offset, std::move(chunk), op);
  }

 private:
  std::shared_ptr<detail::link_session> session_;
  window_ref window_;
};

class link_source final : public detail::source_backend {
 public:
  link_source(std::shared_ptr<detail::link_session> s, window_ref w) : session_(std::move(s)), window_(w) {}
  asio::any_io_executor get_executor() const override { return session_->executor().get(); }
  std::uint64_t size() const override { return window_.size; }
  awaitable<error_code> get(std::uint64_t offset, std::vector<buffer> pieces, event begin) override {
    return session_->get(window_, offset, std::move(pieces), std::move(begin));
  }
  bool gets_at_once(const buffer& chunk) const override { return session_->gets_at_once(window_, chunk); }
  void begin_get(std::uint64_t offset, buffer chunk, detail::transfer_operation& op) noexcept override {
    session_->begin_get(window_, offset, std::move(chunk), op);
  }

 private:
  std::shared_ptr<detail::link_session> session_;
  window_ref window_;
};

}  // namespace

peer_link::peer_link(std::shared_ptr<detail::link_session> session)
    : session_(std::move(session)), goodbye_(session_.get(), [s = session_](void*) { s->fail(errc::closed); }) {}

asio::any_io_executor peer_link::get_executor() const {
  COKV_REQUIRE(session_, "a peer_link is made by async_connect or async_accept before it is used");
  return session_->executor().get();
}
const link_peer& peer_link::peer() const { return session_->peer(); }
error_code peer_link::error() const { return session_->error(); }
sink peer_link::to(window_ref w) const { return sink(std::make_shared<link_sink>(session_, w)); }
source peer_link::from(window_ref w) const { return source(std::make_shared<link_source>(session_, w)); }
void peer_link::close() {
  if (session_) session_->fail(errc::closed);
}

void peer_link::send(const std::shared_ptr<detail::link_session>& s, link_message m, detail::done_handler h) {
  auto body = [](std::shared_ptr<detail::link_session> to, link_message what) -> awaitable<error_code> {
    co_return co_await to->send(std::move(what));
  };
  detail::run_as_operation(s->executor().get(), body(s, std::move(m)), std::move(h));
}
void peer_link::receive(const std::shared_ptr<detail::link_session>& s, detail::message_handler h) {
  auto body = [](std::shared_ptr<detail::link_session> from) -> awaitable<result<link_message>> {
    co_return co_await from->receive();
  };
  detail::run_as_operation(s->executor().get(), body(s), std::move(h));
}
void peer_link::closed(const std::shared_ptr<detail::link_session>& s, detail::done_handler h) {
  s->async_closed(std::move(h));
}

}  // namespace cokv

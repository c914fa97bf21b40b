#include "cache/front.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"

namespace cokv::cache {

struct front::worker {
  // On the stores' context.
  worker(const asio::any_io_executor& ex, const front& of)
      : service(of.blocks_, of.tiers_, of.options_.service, of.totals_), server(ex, web_of(of)) {
    service.add_routes(server);
  }
  // The same for clients that came through the socket: nobody listens between.
  struct without_tls {};
  worker(const asio::any_io_executor& ex, const front& of, without_tls)
      : service(of.blocks_, of.tiers_, of.options_.service, of.totals_), server(ex, plain(web_of(of))) {
    service.add_routes(server);
  }
  static http::server_options plain(http::server_options web) {
    web.tls = {};
    return web;
  }
  // On one of its own.
  worker(const asio::any_io_executor& ex, const front& of, const shard_ref& home)
      : forwarded(std::in_place, ex, home, of.blocks_),
        service(*forwarded, of.tiers_, of.options_.service, of.totals_, home),
        server(ex, web_of(of)) {
    service.add_routes(server);
  }
  http::server_options web_of(const front& of) {
    auto web = of.options_.web;
    web.observe = service.observer();
    web.handshake_failed = service.handshake_observer();
    return web;
  }

  std::optional<forwarded_store> forwarded;
  cache::service service;
  http::server server;
};

front::front(const asio::any_io_executor& ex, store& blocks, std::vector<service::tier> tiers, front_options options)
    : ex_(ex),
      blocks_(blocks),
      tiers_(std::move(tiers)),
      options_(std::move(options)),
      totals_(std::make_shared<totals>()) {
  const auto n = std::max<std::size_t>(1, options_.shards);
  const bool local = !options_.socket.empty();
  options_.service.room /= n + local;
  if (local) {
    local_ = std::make_unique<worker>(ex_, *this, worker::without_tls());
    local_->server.listen(endpoint::local(options_.socket), "--socket");
  }
  if (n == 1) {
    alone_ = std::make_unique<worker>(ex_, *this);
    alone_->server.listen(options_.listen);
    return;
  }
  options_.web.limit.connections = std::max<std::size_t>(1, options_.web.limit.connections / n);
  home_ = forwarded_store::home_of(ex_);
  try {
    door_.emplace(ex_, options_.listen);
  } catch (const boost::system::system_error& e) {
    throw config_error("--listen " + options_.listen.to_string() + ": " + e.code().message());
  }
  workers_.resize(n);
  threads_.emplace(ex_, n);
}

front::~front() = default;

endpoint front::local_endpoint() const { return alone_ ? alone_->server.local_endpoint() : door_->local_endpoint(); }

awaitable<void> front::make(shard_ref self) {
  const auto here = co_await asio::this_coro::executor;
  auto& mine = workers_[self.index()];
  mine = std::make_unique<worker>(here, *this, *home_);
  mine->server.listen(door_->part(here));
}

awaitable<void> front::serve(shard_ref self) {
  struct end_here {
    std::unique_ptr<worker>& w;
    ~end_here() { w.reset(); }
  } end{workers_[self.index()]};
  co_await end.w->server.run();
}

awaitable<void> front::start() {
  if (alone_) co_return;
  auto ended = co_await threads_->run([this](shard_ref self) { return make(self); });
  if (!ended) throw boost::system::system_error(ended.error(), "cache server");
}

awaitable<void> front::run() {
  if (!local_) co_return co_await serve_all();
  auto ended = co_await with(task_group{}, [this](task_group& group) -> awaitable<void> {
    group.spawn([this] { return local_->server.run(); });
    co_await serve_all();
  });
  if (!ended && ended.error() != asio::error::operation_aborted)
    throw boost::system::system_error(ended.error(), "cache server");
}

awaitable<void> front::serve_all() {
  if (alone_) co_return co_await alone_->server.run();
  auto ended = co_await threads_->run([this](shard_ref self) { return serve(self); });
  door_->close();
  if (!ended) throw boost::system::system_error(ended.error(), "cache server");
}

// On each shard, unless its server has ended.
template <class F>
void front::on_each(F f) {
  if (local_) f(local_->server);
  if (alone_) return f(alone_->server);
  for (std::size_t i = 0; i < workers_.size(); ++i)
    (*threads_)[i].try_post([this, i, f] {
      if (workers_[i]) f(workers_[i]->server);
    });
}

void front::drain(duration grace) {
  on_each([grace](http::server& s) { s.drain(grace); });
}

void front::set_keys(const http::api_keys& keys) {
  on_each([keys](http::server& s) { s.set_keys(keys); });
}

void front::set_tls(const tls_context& tls) {
  on_each([tls](http::server& s) {
    if (!s.local_endpoint().is_local()) s.set_tls(tls);
  });
}

}  // namespace cokv::cache

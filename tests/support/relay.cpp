#include "support/relay.hpp"

#include <set>

#include "cokv/runtime/error.hpp"

namespace cokv::test {

struct relay::state : std::enable_shared_from_this<state> {
  struct pair {
    byte_stream client, server;
    std::uint64_t epoch;  // of the plan under which it was accepted
    void close() {
      client.close();
      server.close();
    }
  };

  asio::any_io_executor ex;
  endpoint upstream;
  listener door;
  plan now;
  std::uint64_t passed[2] = {0, 0};
  bool fired = false;
  bool stopped = false;
  std::size_t connections = 0;
  std::uint64_t epoch = 0;
  std::set<std::shared_ptr<pair>> pairs;

  void stop() {
    stopped = true;
    door.close();
    for (auto& p : pairs) p->close();
  }

  awaitable<void> accept(std::shared_ptr<state> self) {
    while (!stopped) {
      auto [ec, client] = co_await door.async_accept(asio::as_tuple(asio::deferred));
      if (ec) co_return;
      ++connections;
      asio::co_spawn(ex, serve(self, std::move(client)), asio::detached);
    }
  }

  awaitable<void> serve(std::shared_ptr<state> self, byte_stream client) {
    const auto accepted = epoch;
    auto [ec, server] = co_await network::of(ex).async_connect(upstream, asio::as_tuple(asio::deferred));
    if (ec || stopped) co_return client.close();
    auto both = std::make_shared<pair>(pair{std::move(client), std::move(server), accepted});
    pairs.insert(both);
    asio::co_spawn(ex, pump(self, both, to_server), asio::detached);
    asio::co_spawn(ex, pump(self, both, to_client), asio::detached);
  }

  awaitable<void> pump(std::shared_ptr<state> self, std::shared_ptr<pair> both, direction way) {
    auto& from = way == to_server ? both->client : both->server;
    auto& to = way == to_server ? both->server : both->client;
    std::vector<std::uint8_t> bytes(64 << 10);
    for (;;) {
      auto [ec, n] = co_await from.async_read_some(asio::buffer(bytes), asio::as_tuple(asio::deferred));
      if (ec) break;
      const bool close = both->epoch == epoch && spoil(way, bytes.data(), n);
      auto [failed, sent] =
          co_await asio::async_write(to, asio::buffer(bytes.data(), n), asio::as_tuple(asio::deferred));
      if (failed || close) break;
    }
    both->close();
    pairs.erase(both);
  }

  // Applies the plan to n bytes that are about to pass. May let fewer pass; true: end the connection after them.
  bool spoil(direction way, std::uint8_t* bytes, std::size_t& n) {
    const auto begin = passed[way];
    passed[way] += n;
    if (now.way != way) return false;
    const auto within = [&](const std::optional<std::uint64_t>& at) { return at && *at >= begin && *at < begin + n; };
    if (within(now.flip_at)) {
      bytes[*now.flip_at - begin] ^= now.mask;
      fired = true;
    }
    if (within(now.cut_at)) {
      n = *now.cut_at - begin;
      fired = true;
      return true;
    }
    if (now.stall_at && *now.stall_at < begin + n) {
      n = *now.stall_at > begin ? *now.stall_at - begin : 0;
      fired = true;
    }
    return false;
  }
};

relay::relay(asio::any_io_executor ex, endpoint upstream) : state_(std::make_shared<state>()) {
  state_->ex = ex;
  state_->upstream = std::move(upstream);
  state_->door = network::of(ex).listen({"127.0.0.1", 0}).value();
  asio::co_spawn(ex, state_->accept(state_), asio::detached);
}

relay::~relay() { state_->stop(); }

endpoint relay::at() const { return state_->door.local_endpoint(); }
void relay::arm(plan p) {
  ++state_->epoch;
  state_->now = p;
  state_->passed[0] = state_->passed[1] = 0;
  state_->fired = false;
}
std::uint64_t relay::passed(direction way) const { return state_->passed[way]; }
bool relay::fired() const { return state_->fired; }
std::size_t relay::connections() const { return state_->connections; }

}  // namespace cokv::test

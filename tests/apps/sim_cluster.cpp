// Prompts whose KV is shared by several cache servers, each a host of a simulated cluster, while servers are killed, stand
// still, are cut off, and come and go. hash_model is the judge: an answer reads every byte of KV, computed or loaded.
#include <doctest/doctest.h>

#include <cstring>

#include "cache/service.hpp"
#include "cokv/kvstream/cluster_store.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_fault_plan.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "kvstream/hash/hash_model.hpp"
#include "support/co_test.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);
constexpr std::uint32_t block_tokens = 2, most_blocks = 60;

const geometry shape = geometry::attention(2, 1, 4, dtype::f32, block_tokens);
const namespace_id ns = namespace_id::of("hash", shape);

std::string url_of(int n) { return "http://n" + std::to_string(n) + ":9009"; }

struct tally {
  int right = 0, wrong = 0, loaded_blocks = 0, computed_blocks = 0, partial = 0, failed_writes = 0, written = 0,
      node_errors = 0, changes = 0, late = 0;
};

awaitable<void> serve(asio::any_io_executor ex) {
  memory_store blocks(ex, memory_store_options{.limit_bytes = 1 << 20});
  cache::service service(blocks, {{"memory", &blocks}});
  http::server server(ex, http::server_options{.observe = service.observer()});
  service.add_routes(server);
  server.listen({"0.0.0.0", 9009});
  co_await server.run();
}

struct client {
  client(asio::any_io_executor e, std::uint64_t seed, tally& of) : ex(e), t(of), random{seed} {}

  std::uint64_t below(std::uint64_t n) { return random.below(n); }

  std::vector<cluster_node> nodes(std::vector<int> which) {
    std::vector<cluster_node> out;
    for (const int n : which) out.push_back({url_of(n), std::make_shared<http_store>(ex, url_of(n))});
    return out;
  }

  // One of three system prompts, as much of it as the request has, and a question of its own.
  hash_model::tokens prompt() {
    hash_model::tokens out;
    const auto system = static_cast<std::uint32_t>(below(3));
    const auto common = 20 + below(60);
    for (std::uint32_t i = 0; i < common; ++i) out.push_back(system * 1000 + i);
    const auto question = static_cast<std::uint32_t>(below(4)), length = 1 + static_cast<std::uint32_t>(below(30));
    for (std::uint32_t i = 0; i < length; ++i) out.push_back(10'000 + question * 100 + i);
    return out;
  }

  struct memory {
    hash_model::place place;
    buffer segment(std::uint32_t layer, std::uint32_t block) const {
      const auto bytes = shape.segment_bytes(layer);
      return place.memory.slice((std::uint64_t{layer} * place.pages + place.table[block]) * bytes, bytes);
    }
    std::vector<buffer> segments(std::uint32_t layer, std::size_t first, std::size_t end) const {
      std::vector<buffer> out;
      for (auto i = first; i < end; ++i) out.push_back(segment(layer, static_cast<std::uint32_t>(i)));
      return out;
    }
  };
  memory room() {
    memory m;
    m.place.pages = most_blocks;
    for (std::uint32_t i = 0; i < most_blocks; ++i) m.place.table.push_back((i * 7 + 3) % most_blocks);
    m.place.memory = buffer::host(shape.block_bytes() * most_blocks);
    std::memset(m.place.memory.data(), 0xee, m.place.memory.size());
    return m;
  }

  // Loads what there is, computes the rest, answers, and stores what was missing.
  awaitable<void> request(cluster_store& s) {
    const auto tokens = prompt();
    std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
    const auto keys = chain_keys(std::span(ids).first(ids.size() - 1), block_tokens);
    const auto m = room();
    std::size_t good = 0;
    auto& time = clock::of(ex);
    const auto begun = time.now();
    auto [ec, reader] = co_await s.async_open_read(ns, shape.layout(), keys, tuple);
    t.late += time.now() - begun > 1s;  // two rounds of its budget, and the odd third
    if (!ec) {
      good = reader->found();
      for (std::uint32_t layer = 0; layer < shape.layers(); ++layer) {
        auto [rec, n] = co_await reader->async_read(layer, m.segments(layer, 0, keys.size()), tuple);
        CHECK(n <= good);
        good = rec ? 0 : n;
      }
    }
    for (std::uint32_t layer = 0; layer < shape.layers(); ++layer)
      model.compute(layer, tokens, static_cast<std::uint32_t>(good) * block_tokens, m.place);
    const auto n = static_cast<std::uint32_t>(tokens.size());
    model.next(m.place, n) == model.answer(tokens, 1).back() ? ++t.right : ++t.wrong;
    t.loaded_blocks += static_cast<int>(good);
    t.computed_blocks += static_cast<int>(keys.size() - good);
    if (good < keys.size()) co_await write(s, keys, m, good);
  }

  awaitable<void> write(cluster_store& s, const std::vector<block_key>& keys, const memory& m, std::size_t from) {
    const std::vector missing(keys.begin() + static_cast<std::ptrdiff_t>(from), keys.end());
    auto [ec, writer] = co_await s.async_open_write(ns, shape.layout(), missing, {}, tuple);
    for (std::uint32_t layer = 0; !ec && layer < shape.layers(); ++layer) {
      auto [wec] = co_await writer->async_write(layer, m.segments(layer, from, keys.size()), tuple);
      ec = wec;
    }
    if (ec) {
      ++t.failed_writes;
      co_return;
    }
    auto [cec] = co_await writer->async_commit(tuple);
    ++(!cec ? t.written : cec == errc::partial ? t.partial : t.failed_writes);
    for (std::size_t i = 0; i < missing.size(); ++i)
      if (!cec || writer->keeps(i)) kept.push_back(missing[i]);
  }

  asio::any_io_executor ex;
  tally& t;
  detail::splitmix random;
  hash_model model{shape};
  std::vector<block_key> kept;  // that a commit has called visible
};

struct faults {
  sim::fault_profile profile;
  bool change_nodes = false;
  bool lose_nothing = false;  // no server is killed: what was stored stays
};

sim::fault_profile breaks() {
  sim::fault_profile p;
  p.nodes = {"n0", "n1", "n2"};
  p.links = {{"n0", "client"}, {"n1", "client"}, {"n2", "client"}};
  p.horizon = 20s;
  p.longest = 4s;
  p.most_nodes_down = 2;
  return p;
}

void run(std::uint64_t seed, const faults& f, tally& t) {
  INFO(replay_command(seed));
  sim_context context(seed);
  std::vector<std::unique_ptr<sim::node>> hosts;
  for (int n = 0; n < 4; ++n)
    hosts.push_back(std::make_unique<sim::node>(context, "n" + std::to_string(n),
                                                [](auto ex) { asio::co_spawn(ex, serve(ex), asio::detached); }));
  sim::node user(context, "client");
  const auto plan = sim::fault_plan::make(seed, f.profile);
  INFO(plan.to_string());
  bool finished = false;
  auto body = [&](asio::any_io_executor ex) -> awaitable<void> {
    auto& time = clock::of(ex);
    client c(ex, seed, t);
    cluster_store s(ex, c.nodes({0, 1, 2}));
    for (int i = 0; i < 40; ++i) {
      co_await c.request(s);
      co_await time.async_wait_for(duration(c.below(500'000'000)));
      if (!f.change_nodes || c.below(10) != 0) continue;
      std::vector<int> which;
      for (int n = 0; n < 4; ++n)
        if (c.below(4) != 0) which.push_back(n);
      if (which.empty()) which.push_back(3);
      s.set_nodes(c.nodes(which));
      ++t.changes;
    }
    for (const auto& n : s.nodes()) t.node_errors += static_cast<int>(n.errors);
    // Nobody waits for a node any more: all of it is stored and found.
    co_await time.async_wait_until(std::max(time.now(), time_point(plan.quiet_from())) + 2min);
    if (f.lose_nothing)
      for (const auto& key : c.kept) CHECK(co_await s.async_match(ns, {key}, as_result) == 1);
    const auto any_bad = [&] { return std::ranges::any_of(s.nodes(), &cluster_node_info::bad); };
    for (int i = 0; i < 200 && (i == 0 || any_bad()); ++i) co_await c.request(s);  // each is tried when it is met
    const auto before = t;
    for (int i = 0; i < 10; ++i) co_await c.request(s);
    CHECK(t.partial + t.failed_writes == before.partial + before.failed_writes);
    CHECK(!any_bad());
    finished = true;
  };
  asio::co_spawn(user.get_executor(), body(user.get_executor()), asio::detached);
  plan.apply(context);
  CHECK(context.run_for(1h) != sim_context::outcome::livelock);
  CHECK(finished);
  CHECK(t.wrong == 0);
  CHECK(t.late == 0);
}

tally run_all(const faults& f) {
  tally t;
  for (auto seed : seeds(500)) run(seed, f, t);
  MESSAGE(t.right, " right answers, ", t.loaded_blocks, " blocks loaded, ", t.computed_blocks, " computed; ", t.written,
          " writes, ", t.partial, " in part, ", t.failed_writes, " failed; ", t.node_errors, " errors of nodes, ",
          t.changes, " other sets of nodes");
  return t;
}

}  // namespace

TEST_CASE("cluster in virtual time: without faults every block is stored and found") {
  auto quiet = breaks();
  quiet.faults_per_second = 0.001;
  quiet.most_faults = 0;
  const auto t = run_all({.profile = quiet, .lose_nothing = true});
  CHECK(t.partial + t.failed_writes + t.node_errors == 0);
  CHECK(t.loaded_blocks > t.computed_blocks);
}

TEST_CASE("cluster in virtual time: servers are killed and stand still, connections break; answers are right") {
  const auto t = run_all({.profile = breaks()});
  CHECK(t.partial >= enough(500));
  CHECK(t.node_errors >= enough(500));
  CHECK(t.loaded_blocks >= enough(10'000));
}

TEST_CASE("cluster in virtual time: nothing is called stored that is not, whatever breaks on the way") {
  auto p = breaks();
  p.weight(sim::fault_kind::kill) = 0;
  p.weight(sim::fault_kind::net_flips) = 1;
  const auto t = run_all({.profile = p, .lose_nothing = true});
  CHECK(t.partial >= enough(300));
}

TEST_CASE("cluster in virtual time: nodes come and go while others break") {
  const auto t = run_all({.profile = breaks(), .change_nodes = true});
  CHECK(t.changes >= enough(1000));
  CHECK(t.loaded_blocks >= enough(10'000));
}

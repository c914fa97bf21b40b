// Models in parts that send prompts to each other: on each side a leader and its other workers, whatever their topologies, with
// what their processes have to move KV, and no HTTP between them.
#pragma once

#include "apps/cluster/streaming_workers.hpp"
#include "cluster/part_mover.hpp"
#include "engine/stage_fixture.hpp"

namespace cokv::test {

struct parts_side {
  // Where the door of each is to listen, and how it is called; none: it has none.
  using urls_of = std::function<std::pair<std::string, std::string>(std::uint32_t)>;

  parts_side(asio::any_io_executor ex, const std::string& device, std::string as, topology split,
             const part_workers::part_maker& make, engine_options o, const link_options& how, const urls_of& urls = {},
             std::uint64_t copies = 0)
      : ex(ex),
        name(std::move(as)),
        w(ex, device, std::move(split), make, std::move(o), copies),
        others(ex, w.split.workers()),
        door(windows, greeting(how, 0)),
        pool(windows, greeting(how, 0), 100ms) {
    for (std::uint32_t n = 1; n < w.split.workers(); ++n) {
      all_windows.emplace_back(ex);
      movers.push_back(std::make_unique<cluster::part_mover>(
          all_windows.back(), greeting(how, n),
          cluster::mover_options{.life = life(n), .links = [this, n] { return links.at(n); }, .in_flight = 5}));
    }
    links.resize(w.split.workers());
    for (std::uint32_t n = 0; urls && n < w.split.workers(); ++n) {
      const auto [listen, connect] = urls(n);
      auto& mine = n == 0 ? door : movers[n - 1]->door();
      REQUIRE(!mine.listen(listen));
      links[n] = connect.empty() ? mine.urls() : std::vector{connect};
    }
  }

  std::string life(std::uint32_t n) const { return name + "-life-" + std::to_string(n); }
  link_options greeting(link_options o, std::uint32_t n) const {
    o.name = "kv/" + name + '/' + life(n);
    o.ns = cluster::links_of(w.leader->running().fingerprint());
    return o;
  }

  void open_doors(task_group& group) {
    group.spawn(door.run());
    for (auto& m : movers) group.spawn(m->door().run());
  }
  void close() {
    door.close();
    pool.close();
    for (auto& m : movers) {
      m->door().close();
      m->pool().close();
    }
  }

  // As processes do: what moves KV ends with what computes, and the other way round.
  awaitable<void> join(task_group& group) {
    if (w.split.workers() == 1) co_return;
    w.stop();
    for (auto& l : kv) l.close();
    while (*moving > 0) co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1), asio::deferred);
    kv.clear();
    std::vector<peer_link> mine(w.split.workers());
    for (std::uint32_t n = 1; n < w.split.workers(); ++n) {
      peer_link theirs;
      std::tie(mine[n], theirs) = co_await w.linked();
      kv.push_back(mine[n]);
      group.spawn([this, n, theirs]() -> awaitable<void> {
        ++*moving;
        const std::shared_ptr<void> at_end(nullptr, [m = moving](void*) { --*m; });
        (void)co_await movers[n - 1]->run(*w.others[n - 1], theirs);
        w.stop();
      });
    }
    group.spawn([this, mine]() mutable -> awaitable<void> {
      ++*moving;
      const std::shared_ptr<void> at_end(nullptr, [m = moving](void*) { --*m; });
      co_await others.run(std::move(mine));
      w.stop();
    });
    co_await w.join_all(group);
  }
  // Another worker comes in its place, without its KV.
  awaitable<void> replace(std::uint32_t n) {
    stop();
    while (*w.running > 0 || *moving > 0)
      co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1), asio::deferred);
    w.replace(n);
  }
  void lose(std::size_t i) {
    if (kv.empty()) return;
    if (i % 2) kv[i / 2 % kv.size()].close();
    for (auto& l : kv) l.close();
    w.cut(i / 2);
  }
  void stop() {
    for (auto& l : kv) l.close();
    kv.clear();
    w.stop();
  }

  void check_end() {
    CHECK(w.leader->counters().blocks_in_use == 0);
    CHECK(w.leader->counters().running == 0);
    CHECK(windows.size() == 0);
    for (auto& t : all_windows) CHECK(t.size() == 0);
  }

  asio::any_io_executor ex;
  std::string name;
  part_workers w;
  window_table windows{ex};
  std::vector<window_table> all_windows;  // of the others
  cluster::other_parts others;
  cluster::link_door door;
  cluster::link_pool pool;
  std::vector<std::unique_ptr<cluster::part_mover>> movers;
  std::vector<std::vector<std::string>> links;
  std::vector<peer_link> kv;
  std::shared_ptr<int> moving = std::make_shared<int>(0);
};

// One attempt at an answer, computed there and decoded here.
struct parts_attempt {
  result<std::vector<token_id>> answer = errc::closed;
  cluster::departed sent;
  error_code not_sent;
};

inline awaitable<parts_attempt> computed_elsewhere(parts_side& from, parts_side& to, generation_request r,
                                                   std::string id, std::uint32_t attempt, duration patience = {},
                                                   const std::function<void()>& told = {}) {
  parts_attempt out;
  auto l = co_await cluster::landing::open(to.windows, *to.w.leader, r,
                                           cluster::offer_of(*from.w.leader, from.name, from.life(0)),
                                           {.id = id,
                                            .attempt = attempt,
                                            .life = to.life(0),
                                            .links = to.links[0],
                                            .others = &to.others,
                                            .patience = 2s,
                                            .lease = 4s});
  if (!l) {
    out.answer = l.error();
    co_return out;
  }
  auto answer = (*l)->take_answer();
  const auto over = std::make_shared<bool>(false);
  std::vector<token_id> tokens;
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> { (void)co_await (*l)->run(to.door); });
    group.spawn([&]() -> awaitable<void> {
      auto done = co_await cluster::depart(*from.w.leader, from.pool, r, (*l)->ticket(),
                                           {.in_flight = 5, .others = &from.others});
      if (done)
        out.sent = *done;
      else
        out.not_sent = done.error();
    });
    if (patience.count() > 0)
      clock::of(to.ex).async_wait_for(patience, [g = &answer, over](error_code) {
        if (!*over) g->cancel();
      });
    for (;;) {
      auto [ec, piece] = co_await answer.async_next(asio::as_tuple(asio::deferred));
      if (ec == asio::error::eof) {
        out.answer = tokens;
        break;
      }
      if (ec) {
        out.answer = ec;
        break;
      }
      tokens.push_back(piece.token);
      if (told) told();
    }
  });
  *over = true;
  CHECK(static_cast<bool>(v));
  co_return out;
}

}  // namespace cokv::test

// The workers of a model find each other, each link where it belongs, in whatever order they come, and come together again when
// links are cut and workers replaced.
#include "cluster/rank_links.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

sim_context& context_of(const asio::any_io_executor& ex) {
  return static_cast<sim_context&>(asio::query(ex, asio::execution::context));
}

awaitable<void> wait_for(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

id256 stage_id(std::uint32_t stage) { return root_key("stage " + std::to_string(stage)); }
model_names names_of(const topology& split, const char* model = "a model") {
  model_names out{root_key(model), {}};
  for (std::uint32_t s = 0; s < split.depth(); ++s) out.stages.push_back(stage_id(s));
  return out;
}
stage_sizes sized(std::uint64_t copies = 0) {
  return {.kv_blocks = 7,
          .block_tokens = 4,
          .max_batched_tokens = 16,
          .max_running = 4,
          .max_requests = 8,
          .max_sequence = 32,
          .microbatches = 3,
          .copies = copies};
}
const auto sizes = sized();

// What worker n has after a time that it had part in.
stage_holding holding_of(std::uint32_t n) { return {{5, 1}, {{1, 9}, {2, 3 + n}}, {{1, n}}}; }

struct rank_process {
  rank_process(asio::any_io_executor ex, const topology& split, std::uint32_t n, const std::vector<std::string>& urls,
               std::string kind, std::optional<std::uint32_t> seat = {})
      : links(window_table(ex), {.split = split,
                                 .self = n,
                                 .urls = urls,
                                 .seat = seat,
                                 .greeting = {.topology = split.text() + '/' + kind, .silence = 500ms},
                                 .patience = 1s}) {
    CHECK(!links.listen(urls[seat.value_or(n)]));
  }
  cluster::rank_links links;
  stage_links mine;
};

struct ranks_bed {
  ranks_bed(asio::any_io_executor e, topology t, std::uint64_t copies = 0, std::uint32_t spares = 0)
      : ex(std::move(e)), split(std::move(t)), wanted(sized(copies)) {
    for (std::uint32_t n = 0; n < split.workers() + spares; ++n)
      urls.push_back("tcp://localhost:" + std::to_string(9000 + n));
    all.resize(split.workers());
  }

  void begin(std::uint32_t n, task_group& group, std::string kind = "f32") {
    all[n] = std::make_shared<rank_process>(ex, split, n, urls, std::move(kind));
    group.spawn([w = all[n]]() -> awaitable<void> { co_await w->links.run(); });
  }
  void end(std::uint32_t n) {
    all[n]->links.close();
    all[n].reset();
  }

  // All of them at once; they begin in an order that the seed picks.
  awaitable<void> meet() {
    const auto v = co_await with(task_group{}, [&](task_group& group) {
      for (std::uint32_t n = 0; n < all.size(); ++n)
        group.spawn([this, n]() -> awaitable<error_code> {
          const auto w = all[n];
          co_await wait_for(context_of(ex).between(1ns, 3s));
          if (n == 0) {
            auto got = co_await w->links.gather(wanted, names_of(split), [this](std::vector<stage_holding> said) {
              holdings = said;
              return stage_recovery{{5, 2}, {1}, {{1, 8, {0}, {4}}}};
            });
            if (!got) co_return got.error();
            CHECK(got->how.has_value() == (wanted.copies > 0));
            w->mine = std::move(got->links);
            co_return error_code();
          }
          auto got = co_await w->links.summoned(stage_id(split.at(n).stage), [&](const stage_sizes& told) {
            CHECK(told == wanted);
            return holding_of(n);
          });
          if (!got) co_return got.error();
          CHECK(got->sizes == wanted);
          CHECK(got->how.has_value() == (wanted.copies > 0));
          if (got->how) CHECK(*got->how == stage_recovery{{5, 2}, {1}, {{1, 8, {0}, {4}}}});
          w->mine = std::move(got->links);
          co_return error_code();
        });
    });
    CHECK(!v.error());
  }

  // What each says is heard by the one who should.
  awaitable<void> check() {
    const auto said = [](std::uint32_t from, std::uint32_t to) {
      return link_message{static_cast<std::byte>(from), static_cast<std::byte>(to)};
    };
    const auto leads_to = [&](std::uint32_t from, peer_link a, std::uint32_t to, peer_link b) -> awaitable<void> {
      CAPTURE(from);
      CAPTURE(to);
      REQUIRE(a);
      REQUIRE(b);
      co_await a.async_send(said(from, to));
      co_await b.async_send(said(to, from));
      const auto there = co_await b.async_receive(), here = co_await a.async_receive();
      CHECK(there == said(from, to));
      CHECK(here == said(to, from));
    };
    for (std::uint32_t n = 0; n < all.size(); ++n) {
      const auto who = split.at(n);
      auto& mine = all[n]->mine;
      if (n > 0) co_await leads_to(0, all[0]->mine.workers[n], n, mine.leader);
      CHECK(static_cast<bool>(mine.before) == (who.stage > 0));
      CHECK(static_cast<bool>(mine.behind) == (who.stage + 1 < split.depth()));
      CHECK(mine.ranks.size() == (split.degree() > 1 ? split.degree() : 0));
      if (mine.behind) {
        const auto next = n + split.degree();
        co_await leads_to(n, mine.behind, next, all[next]->mine.before);
      }
      CHECK(static_cast<bool>(mine.keeper) == (wanted.copies > 0 && n > 0));
      CHECK(static_cast<bool>(mine.kept) == (wanted.copies > 0 && kept_by(split, n) > 0));
      if (mine.keeper) {
        const auto keeper = keeper_of(split, n);
        co_await leads_to(n, mine.keeper, keeper, all[keeper]->mine.kept);
      }
      for (std::uint32_t r = who.rank + 1; r < mine.ranks.size(); ++r) {
        const auto other = split.number({who.stage, r});
        co_await leads_to(n, mine.ranks[r], other, all[other]->mine.ranks[who.rank]);
      }
    }
  }

  void drop_links() {
    for (auto& w : all)
      if (w) w->mine = {};
  }

  asio::any_io_executor ex;
  topology split;
  stage_sizes wanted;
  std::vector<std::string> urls;
  std::vector<std::shared_ptr<rank_process>> all;
  std::vector<stage_holding> holdings;  // as the leader heard them last
};

}  // namespace

TEST_CASE("rank_links: each link is where it belongs, also after workers were replaced and links were lost") {
  for (auto split : {topology(1, 2), topology(3, 1), topology(2, 2), topology(2, 3)})
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          auto& ctx = context_of(ex);
          ranks_bed bed(ex, split);
          const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (std::uint32_t n = 0; n < split.workers(); ++n) bed.begin(n, group);
            for (int round = 0; round < 4; ++round) {
              co_await bed.meet();
              CHECK(bed.all[0]->links.missing().size() == split.workers() - 1);  // theirs are with whoever leads
              co_await bed.check();
              if (ctx.chance(0.5)) {
                const auto n = static_cast<std::uint32_t>(ctx.below(split.workers()));
                bed.end(n);
                if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 1s));
                bed.drop_links();
                if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 1s));
                bed.begin(n, group);
              } else {
                bed.drop_links();
              }
            }
            for (auto& w : bed.all) w->links.close();
          });
          CHECK(!v.error());
        },
        {.real = false, .seeds = 60});
}

TEST_CASE("rank_links: with copies, what each has comes to the leader, and what goes on to all of them") {
  for (auto split : {topology(1, 2), topology(3, 1), topology(2, 2), topology(2, 3)})
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          ranks_bed bed(ex, split, 1 << 20);
          const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (std::uint32_t n = 0; n < split.workers(); ++n) bed.begin(n, group);
            for (int round = 0; round < 2; ++round) {
              co_await bed.meet();
              co_await bed.check();
              REQUIRE(bed.holdings.size() == split.workers());
              for (std::uint32_t n = 1; n < split.workers(); ++n) {
                CHECK(bed.holdings[n].last == holding_of(n).last);
                CHECK(bed.holdings[n].computed == holding_of(n).computed);
                CHECK(bed.holdings[n].kept == holding_of(n).kept);
              }
              bed.drop_links();
            }
            for (auto& w : bed.all) w->links.close();
          });
          CHECK(!v.error());
        },
        {.real = false, .seeds = 5});
}

TEST_CASE(
    "rank_links: a spare is sent for who was there and does not come back, at its own door, and for nobody else") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const topology split(3, 1);
        ranks_bed bed(ex, split, 1 << 20, 2);
        const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          std::vector<std::pair<std::uint32_t, std::uint32_t>> taken;  // seats, and numbers
          std::vector<std::shared_ptr<cluster::rank_links>> waiting;
          for (std::uint32_t seat : {3u, 4u}) {
            waiting.push_back(std::make_shared<cluster::rank_links>(
                window_table(ex), cluster::rank_options{.split = split,
                                                        .self = seat,
                                                        .urls = bed.urls,
                                                        .greeting = {.topology = "pp3xtp1/f32", .silence = 500ms}}));
            group.spawn([&, seat, spare = waiting.back()]() -> awaitable<void> {
              auto got = co_await spare->recruited();
              if (!got) co_return;
              taken.emplace_back(seat, got->number);
              co_await wait_for(context_of(ex).between(1ns, 2s));  // it reads its weights
              bed.all[got->number] = std::make_shared<rank_process>(ex, split, got->number, bed.urls, "f32", seat);
              group.spawn([w = bed.all[got->number]]() -> awaitable<void> { co_await w->links.run(); });
              while (!bed.all[got->number]->mine.leader) co_await wait_for(1ms);
            });
          }
          bed.begin(0, group);
          bed.begin(2, group);
          co_await wait_for(3s);  // the first time nobody is replaced: who is awaited may read its weights
          CHECK(taken.empty());
          bed.begin(1, group);
          co_await bed.meet();
          co_await bed.check();
          CHECK(taken.empty());
          CHECK(bed.all[0]->links.waiting_spares().size() == 2);

          // The leader and worker 2 are there again at once, and 1 is not.
          bed.drop_links();
          bed.end(1);
          auto leader = bed.all[0], last = bed.all[2];
          const auto met = co_await with(task_group{}, [&](task_group& both) {
            both.spawn([&]() -> awaitable<void> {
              auto got = co_await leader->links.gather(bed.wanted, names_of(bed.split),
                                                       [](auto) { return stage_recovery{{5, 3}, {1}, {}}; });
              REQUIRE(got.has_value());
              leader->mine = std::move(got->links);
            });
            both.spawn(
                [&]() -> awaitable<void> { last->mine = (co_await last->links.summoned(stage_id(2))).value().links; });
            both.spawn([&]() -> awaitable<void> {
              while (!bed.all[1]) co_await wait_for(1ms);
              const auto fresh = bed.all[1];
              fresh->mine = (co_await fresh->links.summoned(stage_id(1))).value().links;
            });
          });
          CHECK(!met.error());
          co_await bed.check();
          REQUIRE(taken.size() == 1);
          CHECK(taken[0].second == 1);
          CHECK(bed.all[0]->links.waiting_spares().size() == 1);
          for (auto& w : bed.all) w->links.close();
          for (auto& w : waiting) w->close();
          group.cancel();
        });
        CHECK((!v.error() || v.error() == asio::error::operation_aborted));
      },
      {.real = false, .seeds = 20});
}

TEST_CASE("rank_links: a worker of another model, or cut otherwise, is not let in, and keeps nobody out") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        ranks_bed bed(ex, topology(2, 1));
        const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          bed.begin(0, group);
          bed.begin(1, group, "bf16");
          bool gathered = false;
          group.spawn([&]() -> awaitable<void> {
            auto got = co_await with_deadline(bed.all[0]->links.gather(sizes, names_of(bed.split)), 60s);
            CHECK(got.has_value());
            gathered = true;
          });
          const auto wrong = co_await with_deadline(bed.all[1]->links.summoned(stage_id(1)), 5s);
          CHECK(wrong.error() == errc::deadline);
          CHECK(bed.all[0]->links.missing() == std::vector<std::uint32_t>{1});
          bed.end(1);
          bed.begin(1, group);
          const auto told = co_await with_deadline(bed.all[1]->links.summoned(stage_id(1)), 5s);
          CHECK(told.has_value());
          while (!gathered) co_await wait_for(1ms);
          for (auto& w : bed.all) w->links.close();
          CHECK((co_await bed.all[0]->links.gather(sizes, names_of(bed.split))).error() == errc::closed);
          CHECK((co_await bed.all[1]->links.summoned(stage_id(1))).error() == errc::closed);
        });
        CHECK(!v.error());
      },
      {.real = false, .seeds = 20});
}

TEST_CASE("rank_links: a worker whose stage is another's is not let in, nor one that had another leader") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        ranks_bed bed(ex, topology(2, 1));
        const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          const auto joins = [&](const char* model, std::uint32_t stage) -> awaitable<bool> {
            bool gathered = false;
            (void)co_await with(task_group{}, [&](task_group& both) -> awaitable<void> {
              both.spawn([&]() -> awaitable<void> {
                auto got = co_await bed.all[0]->links.gather(sizes, names_of(bed.split, model));
                gathered = got.has_value();
              });
              const auto told = co_await with_deadline(bed.all[1]->links.summoned(stage_id(stage)), 5s);
              if (told) {
                CHECK(told->fingerprint == names_of(bed.split, model).whole);
                while (!gathered) co_await wait_for(1ms);
              } else {
                CHECK(told.error() == errc::deadline);
              }
              both.cancel();
            });
            co_return gathered;
          };
          bed.begin(0, group);
          bed.begin(1, group);
          CHECK_FALSE(co_await joins("a model", 0));
          CHECK(co_await joins("a model", 1));
          CHECK_FALSE(co_await joins("one with another first stage", 1));
          CHECK(co_await joins("a model", 1));
          for (auto& w : bed.all) w->links.close();
        });
        CHECK(!v.error());
      },
      {.real = false, .seeds = 20});
}

TEST_CASE("rank_links: what is no leader's word is not gone by") {
  const topology split(2, 1);
  const auto whole = names_of(split).whole.hex(), own = stage_id(1).hex();
  const auto good = R"({"time":"a","fingerprint":")" + whole + R"(","stage":")" + own +
                    R"(","sums_by_mpi":false,"kv_blocks":1,"block_tokens":1,"max_batched_tokens":1,"max_running":1,)" +
                    R"("max_requests":1,"max_sequence":1,"microbatches":1,"copies":0,"host_blocks":0,"slots":0,)" +
                    R"("urls":["tcp://localhost:9100","tcp://localhost:9101"]})";
  std::vector<std::string> bad{"", "{}", "nonsense"};
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{R"("time":"a")", R"("time":"a/b")"},
                                                        {R"("time":"a",)", ""},
                                                        {R"("kv_blocks":1)", R"("kv_blocks":-1)"},
                                                        {R"("kv_blocks":1)", R"("kv_blocks":0)"},
                                                        {R"("microbatches":1)", R"("microbatches":65)"},
                                                        {R"("slots":0)", R"("slots":1)"},
                                                        {R"("slots":0,)", ""},
                                                        {R"(,"tcp://localhost:9101")", ""},
                                                        {whole, "another"},
                                                        {whole, whole + "00"},
                                                        {own, stage_id(0).hex()},
                                                        {R"("stage":")" + own + R"(",)", ""}}) {
    const auto at = good.find(from);
    REQUIRE(at != good.npos);
    bad.push_back(good);
    bad.back().replace(at, from.size(), to);
  }
  // What it answers: that it is ready, or nothing, as it leaves.
  const auto answered = [&split](asio::any_io_executor ex, std::string word) -> awaitable<bool> {
    const std::vector<std::string> urls{"tcp://localhost:9100", "tcp://localhost:9101"};
    rank_process other(ex, split, 1, urls, "f32");
    bool answer = false;
    const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      window_table windows(ex);
      auto door = link_listener::listen(windows, urls[0], {.name = "rank/0/plan/x", .topology = "pp2xtp1/f32"}).value();
      group.spawn([&]() -> awaitable<void> {
        const auto got = co_await with_deadline(other.links.summoned(stage_id(1)), 1s);
        CHECK((got.has_value() || got.error() == errc::deadline));
        co_await wait_for(10ms);  // its last word comes
        other.links.close();
        group.cancel();
      });
      std::vector<peer_link> rows;  // what it goes on with
      for (;;) {
        auto link = co_await door.async_accept();
        if (link.peer().name.find("/plan/") == std::string::npos) {
          rows.push_back(std::move(link));
          continue;
        }
        group.spawn([](peer_link to, const std::string& said, bool& answer) -> awaitable<void> {
          const auto bytes = std::as_bytes(std::span(said));
          co_await to.async_send(link_message(bytes.begin(), bytes.end()));
          answer = (co_await to.async_receive(as_result)).has_value();
        }(std::move(link), word, answer));
      }
    });
    CHECK((!v.error() || v.error() == asio::error::operation_aborted));
    co_return answer;
  };
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        CHECK(co_await answered(ex, good));
        for (const auto& word : bad) {
          INFO(word);
          CHECK_FALSE(co_await answered(ex, word));
        }
      },
      {.real = false, .seeds = 3});
}

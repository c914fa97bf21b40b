// Quotas of a store in a folder, on simulated disks: what goes for them stays away, through cleaning, crashes and restarts.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "block_versions.hpp"
#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "support/enough.hpp"
#include "support/store_contract_quotas.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));
const std::uint64_t whole = contract_layout().bytes();

auto as_tuple() { return asio::as_tuple(asio::deferred); }

file_store_options options(const tenant_quotas& quotas, std::uint64_t limit = 1 << 26) {
  return {.directory = "cache", .limit_bytes = limit, .quotas = quotas, .segment_bytes = 60'000};
}

awaitable<bool> there(cokv::store& s, std::uint32_t key) {
  co_return co_await s.async_match(ns, contract_keys(key, 1)) == 1;
}

tenant_info told_of(const cokv::store& s, const std::string& who) {
  for (const auto& t : s.info().tenants)
    if (t.name == who) return t;
  return {};
}

}  // namespace

TEST_CASE("file store: the contract of quotas, on simulated disks, cancelled and destroyed at every step") {
  for (const bool direct : {false, true}) {
    CAPTURE(direct);
    const auto body = [direct](asio::any_io_executor ex) -> awaitable<void> {
      auto o = options({});
      o.direct = direct;
      auto s = co_await file_store::async_open(ex, o);
      co_await quota_contract(*s, [&](const tenant_quotas& q) { s->set_quotas(q); }, direct ? 32'768 : whole);
    };
    co_test(body, {.real = false, .seeds = 10});
    const auto few = [direct](asio::any_io_executor ex) -> awaitable<void> {
      auto o = options({{"a", 70'000}});
      o.direct = direct;
      auto s = co_await file_store::async_open(ex, o);
      co_await write_blocks(*s, ns, 0, 2, {.tenant = "a"});
      co_await write_blocks(*s, ns, 2, 1, {.deferred = true, .tenant = "a"});
      co_await write_blocks(*s, ns, 3, 2, {.force = true, .tenant = "a"});
      co_await read_blocks(*s, ns, 3, 2);
    };
    cancel_at_every_step(few, {.real = false, .seeds = 5});
    destroy_at_every_step(few, {.real = false, .seeds = 5});
  }
}

TEST_CASE("file store: a writer under a quota that is cancelled anywhere leaves the sums as they are") {
  std::size_t cut = 0, through = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto s = co_await file_store::async_open(ex, options({{"a", 3 * whole}}));
        for (std::uint32_t steps = 0; steps < 200; ++steps) {
          asio::cancellation_signal cancel;
          semaphore over(ex, 0);
          error_code outcome;
          asio::co_spawn(ex, write_blocks(*s, ns, 2 * steps, 2, {.deferred = steps % 3 == 0, .tenant = "a"}),
                         asio::bind_cancellation_slot(cancel.slot(), [&](std::exception_ptr e, error_code ec) {
                           outcome = e ? make_error_code(asio::error::operation_aborted) : ec;
                           over.release();
                         }));
          for (std::uint32_t i = 0; i < steps % 20; ++i) co_await asio::post(ex, asio::deferred);
          if (steps >= 20) co_await clock::of(ex).async_wait_for(std::chrono::microseconds(20 * steps));
          CHECK(told_of(*s, "a").used_bytes <= 3 * whole);
          cancel.emit(asio::cancellation_type::all);
          (void)co_await over.async_acquire(1, asio::deferred);
          ++(outcome == asio::error::operation_aborted ? cut : through);
          CHECK((!outcome || outcome == asio::error::operation_aborted));
          co_await s->async_settle();
          CHECK(told_of(*s, "a").used_bytes <= 3 * whole);
          CHECK(told_of(*s, "a").used_bytes == s->info().blocks * whole);
          CHECK(s->info().used_bytes == s->info().blocks * whole);
        }
      },
      {.real = false, .seeds = 10});
  CHECK(cut >= enough(100));
  CHECK(through >= enough(100));
}

TEST_CASE("file store: what went for a quota is not there after a restart, and nobody else's went") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto o = options({{"a", 2 * whole}});
        auto s = co_await file_store::async_open(ex, o);
        CHECK(!co_await write_version(*s, ns, 0, 100, {.tenant = "a"}));
        CHECK(!co_await write_blocks(*s, ns, 10, 1));  // in one file with it, which stays for its sake
        for (std::uint32_t i = 1; i < 4; ++i) CHECK(!co_await write_blocks(*s, ns, i, 1, {.tenant = "a"}));
        for (int life = 0; life < 3; ++life) {
          for (std::uint32_t i = 0; i < 4; ++i) CHECK(co_await there(*s, i) == (i >= 2));
          CHECK(co_await there(*s, 10));
          CHECK(told_of(*s, "a").used_bytes == 2 * whole);
          CHECK(told_of(*s, "a").quota_bytes == 2 * whole);
          co_await s->async_settle();
          s.reset();
          s = co_await file_store::async_open(ex, o);
        }
        // Less from now on: it is given up with the next write.
        s.reset();
        s = co_await file_store::async_open(ex, options({{"a", whole}}));
        CHECK(told_of(*s, "a").used_bytes == 2 * whole);
        CHECK(!co_await write_blocks(*s, ns, 20, 1, {.tenant = "a"}));
        CHECK(told_of(*s, "a").used_bytes == whole);
        CHECK(co_await there(*s, 20));
      },
      {.real = false});
}

TEST_CASE(
    "file store: what an abandoned writer pressed out stays away, whatever crashes, though nothing is written after "
    "it") {
  for (const bool settled : {true, false})
    for (auto seed : seeds(20)) {
      CAPTURE(settled);
      INFO(replay_command(seed));
      sim_context context(seed);
      sim::node host(context, "host");
      const auto o = options({{"a", 2 * whole}});
      const auto ex = host.get_executor();
      std::shared_ptr<file_store> kept;  // until the crash
      auto press = [&]() -> awaitable<void> {
        kept = co_await file_store::async_open(ex, o);
        CHECK(!co_await write_version(*kept, ns, 0, 1, {.tenant = "a"}));
        CHECK(!co_await write_blocks(*kept, ns, 10, 1));  // in one file with it
        CHECK(!co_await write_blocks(*kept, ns, 1, 1, {.tenant = "a"}));
        CHECK(!co_await write_blocks(*kept, ns, 11, 1));
        {
          auto writer = co_await kept->async_open_write(ns, contract_layout(), contract_keys(2, 1), {.tenant = "a"});
          CHECK(!co_await there(*kept, 0));
          CHECK(kept->info().blocks == 3);
        }
        if (settled)
          co_await kept->async_settle();
        else
          co_await clock::of(ex).async_wait_for(std::chrono::seconds(1));
      };
      asio::co_spawn(ex, press(), [](std::exception_ptr e) { CHECK(!e); });
      context.run();
      host.kill();
      kept.reset();
      host.start();
      auto after = [&]() -> awaitable<void> {
        auto s = co_await file_store::async_open(host.get_executor(), o);
        CHECK(!co_await there(*s, 0));
        for (const std::uint32_t key : {1, 10, 11}) CHECK(co_await there(*s, key));
        CHECK(told_of(*s, "a").used_bytes == whole);
      };
      asio::co_spawn(host.get_executor(), after(), [](std::exception_ptr e) { CHECK(!e); });
      context.run();
    }
}

TEST_CASE("file store: a reader keeps the bytes of a block that goes for a quota which came while it was open") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto s = co_await file_store::async_open(ex, options({}));
        CHECK(!co_await write_blocks(*s, ns, 0, 2, {.tenant = "a"}));
        auto reader = co_await s->async_open_read(ns, contract_layout(), contract_keys(0, 2));
        s->set_quotas({{"a", whole}});
        CHECK(!co_await write_blocks(*s, ns, 5, 1, {.tenant = "a"}));
        CHECK(!co_await there(*s, 0));
        CHECK(s->info().blocks == 1);
        for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) {
          const auto bytes = contract_layout().segments[layer];
          const std::vector into{buffer::host(bytes), buffer::host(bytes)};
          CHECK(co_await reader->async_read(layer, into) == 2);
          CHECK(into[1].data()[bytes - 1] == contract_byte(1, layer, bytes - 1));
        }
      },
      {.real = false});
}

TEST_CASE(
    "file store: whatever a tenant with a quota does, its sums hold and others' blocks stay, also after restarts") {
  std::uint64_t runs = 0, evicted = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        ++runs;
        auto& context = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
        std::mt19937 random(static_cast<unsigned>(context.seed()));
        const bool roomy = context.seed() % 2 != 0;  // nothing goes but for quotas
        tenant_quotas quotas{{"a", 8 * whole}, {"b", 4 * whole}};
        auto o = options(quotas, roomy ? 1 << 26 : 40 * 30'000);
        const std::string tenants[] = {"", "a", "b"};
        std::map<std::uint32_t, std::string> owners;
        auto s = co_await file_store::async_open(ex, o);
        const auto sums = [&]() -> awaitable<std::map<std::string, std::uint64_t>> {
          std::map<std::string, std::uint64_t> out;
          for (const auto& [key, who] : owners)
            if (co_await there(*s, key)) out[who] += whole;
          co_return out;
        };
        std::uint32_t next = 0;
        for (int step = 0; step < 50; ++step) {
          if (const auto n = std::min<std::uint32_t>(next, 2); n != 0) (void)co_await read_blocks(*s, ns, 0, n);
          const auto before = co_await sums();
          const auto of = [&](const std::string& who) {
            const auto b = before.find(who);
            return b == before.end() ? 0 : b->second;
          };
          const auto what = random() % 10;
          std::string writer = "nobody";
          bool force = false;
          if (what == 0 && next != 0) {
            const auto key = static_cast<std::uint32_t>(random() % next);
            (void)co_await s->async_remove(ns, contract_keys(key, 1)[0], as_tuple());
            writer = "all";
          } else if (what == 1) {
            evicted += s->info().evicted_blocks;
            s.reset();
            o.quotas = quotas;
            s = co_await file_store::async_open(ex, o);
          } else if (what == 2) {
            quotas["a"] = (5 + random() % 6) * whole;
            if (random() % 2 != 0) {
              quotas["b"] = (4 + random() % 4) * whole;
            } else {
              quotas.erase("b");
            }
            s->set_quotas(quotas);
          } else {
            const bool again = what == 3 && next != 0;
            force = again && random() % 2 == 0;
            const auto first = again ? static_cast<std::uint32_t>(random() % next) : next;
            const auto count = static_cast<std::uint32_t>(1 + random() % 4);
            writer = tenants[random() % 3];
            std::map<std::uint32_t, std::string> taken;
            for (auto key = first; key < first + count; ++key)
              if (force || !co_await there(*s, key)) taken[key] = writer;
            const auto ec = co_await write_blocks(*s, ns, first, count, {.force = force, .tenant = writer});
            // Too much of the quota is what the write found there already.
            CHECK((!ec || (again && quotas.contains(writer) && ec == errc::store_full)));
            if (!ec)
              for (auto& [key, by] : taken) owners[key] = by;
            next = std::max(next, first + count);
            if (!ec && !taken.empty() && quotas.contains(writer))
              CHECK(told_of(*s, writer).used_bytes <= quotas[writer]);
          }
          co_await s->async_settle();
          INFO("what " << what << " writer " << writer << " step " << step);
          const auto now = co_await sums();
          for (const auto& who : tenants) {
            const auto n = now.find(who);
            const auto has = n == now.end() ? 0 : n->second;
            if (!who.empty()) CHECK(told_of(*s, who).used_bytes == has);
            if (!who.empty()) CHECK(told_of(*s, who).quota_bytes == (quotas.contains(who) ? quotas[who] : 0));
            if (roomy && !force && writer != "all" && writer != who) CHECK(has == of(who));
          }
        }
        evicted += s->info().evicted_blocks;
      },
      {.real = false, .seeds = seeds_of_a_suite});
  CHECK((evicted > 10 * runs || one_seed()));
}

TEST_CASE("file store: under quotas, a limit and crashes no key goes back to what it was before") {
  constexpr std::uint32_t keys = 10;
  constexpr std::uint64_t limit = 40 * 36'864;
  std::size_t seen = 0, again = 0, pressed = 0;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    sim::node host(context, "host");
    auto how = options({{"a", (2 + seed % 4) * whole}}, limit);
    std::vector<std::uint32_t> newest(keys, 0), tried(keys, 0);  // versions; 0: none
    auto look_at = [&](cokv::store& s, std::uint32_t key) -> awaitable<void> {
      const auto v = co_await version_of(s, ns, key, 0, 200 - 1);
      if (!v) co_return;
      ++seen;
      CHECK(*v >= std::max(newest[key], 1u));
      CHECK(*v <= tried[key]);
      newest[key] = *v;
    };
    for (int life = 0; life < 5; ++life) {
      auto work = [&](asio::any_io_executor ex) -> awaitable<void> {
        auto s = co_await file_store::async_open(ex, how);
        for (std::uint32_t key = 0; key < keys; ++key) co_await look_at(*s, key);
        std::uint32_t other = 1000;
        for (;;) {
          CHECK(s->info().file_bytes <= limit);
          const auto key = static_cast<std::uint32_t>(context.below(keys));
          if (context.chance(0.6)) {
            if (co_await there(*s, key)) continue;
            again += tried[key] != 0;
            const auto before = s->info().evicted_blocks;
            const auto ec = co_await write_version(*s, ns, key, ++tried[key], {.tenant = "a"});
            CHECK((!ec || ec == errc::store_full));
            if (!ec) newest[key] = tried[key];
            pressed += s->info().evicted_blocks - before;
            CHECK(told_of(*s, "a").used_bytes <= how.quotas["a"]);
          } else if (context.chance(0.5)) {
            co_await look_at(*s, key);
          } else {
            co_await write_blocks(*s, ns, other, static_cast<std::uint32_t>(1 + context.below(3)));
            other += 4;
            if (context.chance(0.3)) co_await read_blocks(*s, ns, other - 4, 3);
          }
        }
      };
      asio::co_spawn(host.get_executor(), work(host.get_executor()), asio::detached);
      context.run_for(duration(static_cast<std::int64_t>(context.below(60'000'000))));
      host.kill();
      host.start();
    }
    bool finished = false;
    auto look = [&](asio::any_io_executor ex) -> awaitable<void> {
      for (int life = 0; life < 2; ++life) {
        auto s = co_await file_store::async_open(ex, how);
        for (std::uint32_t key = 0; key < keys; ++key) co_await look_at(*s, key);
        co_await s->async_settle();
      }
    };
    asio::co_spawn(host.get_executor(), look(host.get_executor()), [&](std::exception_ptr e) { finished = !e; });
    context.run();
    CHECK(finished);
  }
  CHECK(seen >= enough(1000));
  CHECK(again >= enough(1000));
  CHECK(pressed >= enough(1000));
}

TEST_CASE("file store: what a tenant turns over under its quota takes no room for ever") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto s = co_await file_store::async_open(ex, options({{"a", 3 * whole}}));
        CHECK(!co_await write_blocks(*s, ns, 0, 1, {.tenant = "a"}));
        CHECK(!co_await write_blocks(*s, ns, 50, 1));  // its file stays
        for (std::uint32_t i = 0; i < 300; ++i) CHECK(!co_await write_blocks(*s, ns, i % 7, 1, {.tenant = "a"}));
        co_await s->async_settle();
        CHECK(s->info().blocks == 4);
        CHECK(s->info().file_bytes < 30 * whole);
        for (std::uint32_t i = 100; i < 400; ++i) CHECK(!co_await write_blocks(*s, ns, i, 1, {.tenant = "a"}));
        co_await s->async_settle();
        CHECK(s->info().file_bytes < 30 * whole);
        s.reset();
        s = co_await file_store::async_open(ex, options({{"a", 3 * whole}}));
        CHECK(s->info().blocks == 4);
      },
      {.real = false});
}

TEST_CASE("file store: a quota that became much less takes many blocks at once, and they stay away") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        constexpr std::uint32_t batch = 1000, batches = 7;
        const block_layout tiny{{16}};
        const auto write = [&](store& s, std::uint32_t first, std::uint32_t n) -> awaitable<error_code> {
          auto [ec, writer] =
              co_await s.async_open_write(ns, tiny, contract_keys(first, n), {.tenant = "a"}, as_tuple());
          if (ec) co_return ec;
          co_await writer->async_write(0, std::vector(n, buffer::host(16)));
          auto [commit_ec] = co_await writer->async_commit(as_tuple());
          co_return commit_ec;
        };
        auto o = options({});
        o.segment_bytes = 0;
        auto s = co_await file_store::async_open(ex, o);
        for (std::uint32_t i = 0; i < batches; ++i) CHECK(!co_await write(*s, i * batch, batch));
        s->set_quotas({{"a", 20 * 16}});
        CHECK(!co_await write(*s, 0, 1));  // there already
        CHECK(s->info().blocks == batch * batches);
        CHECK(!co_await write(*s, 10'000, 5));
        CHECK(s->info().blocks == 20);
        s.reset();
        s = co_await file_store::async_open(ex, o);
        CHECK(s->info().blocks == 20);
        CHECK(co_await there(*s, 10'000));
      },
      {.real = false, .seeds = 3});
}

TEST_CASE("file store: a crash between a block and the removal of the one before it brings neither back later") {
  for (auto seed : seeds(50)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    sim::node host(context, "host");
    const auto how = options({}, 20 * 36'864);
    const auto spawn = [&](auto& work) {
      asio::co_spawn(host.get_executor(), work(), [](std::exception_ptr e) { CHECK(!e); });
    };
    const auto restart = [&] {
      host.kill();
      host.start();
    };
    auto before = [&]() -> awaitable<void> {
      auto s = co_await file_store::async_open(host.get_executor(), how);
      CHECK(!co_await write_version(*s, ns, 0, 1, {}));
      CHECK(!co_await write_blocks(*s, ns, 10, 1));  // in the same file
      co_await s->async_settle();
    };
    spawn(before);
    context.run();
    restart();

    bool entered = false;
    auto cut = [&]() -> awaitable<void> {
      auto s = co_await file_store::async_open(host.get_executor(), how);
      auto watch = [&]() -> awaitable<void> {
        while (s->info().written_blocks == 0)
          co_await clock::of(host.get_executor()).async_wait_for(std::chrono::microseconds(1));
        entered = true;
        co_await clock::of(host.get_executor()).async_wait_for(std::chrono::hours(1));
      };
      asio::co_spawn(host.get_executor(), watch(), asio::detached);
      (void)co_await write_version(*s, ns, 0, 2, {.force = true});
      CHECK_MESSAGE(entered, "there was nothing between the two");
    };
    spawn(cut);
    while (!entered && context.step()) {
    }
    restart();

    auto after = [&]() -> awaitable<void> {
      auto s = co_await file_store::async_open(host.get_executor(), how);
      CHECK(co_await there(*s, 0));  // nobody asked for it: its file goes, the other one stays
      auto reader = co_await s->async_open_read(ns, contract_layout(), contract_keys(10, 1));
      CHECK(reader->found() == 1);
      for (std::uint32_t i = 100; i < 200 && co_await there(*s, 0); ++i) CHECK(!co_await write_blocks(*s, ns, i, 1));
      CHECK(!co_await there(*s, 0));
      co_await s->async_settle();
    };
    spawn(after);
    context.run();
    restart();

    auto at_last = [&]() -> awaitable<void> {
      auto s = co_await file_store::async_open(host.get_executor(), how);
      CHECK(co_await there(*s, 10));
      CHECK(!co_await there(*s, 0));
    };
    spawn(at_last);
    context.run();
  }
}

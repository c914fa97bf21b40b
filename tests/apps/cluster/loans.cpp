// Memory that one worker lends and another keeps KV in: as long as the link between them, and not a byte more than there is.
#include "cluster/loans.hpp"

#include <boost/json/serialize.hpp>

#include "../http_fixture.hpp"
#include "cluster/link_door.hpp"
#include "cluster/loan.hpp"
#include "http/json.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::cluster;
using namespace cokv::test;
namespace json = boost::json;

namespace {

constexpr std::uint64_t all = 1 << 20;

struct lender {
  explicit lender(asio::any_io_executor ex)
      : windows(ex),
        where(any_device(ex)),
        door(windows, {.name = "kv/prefill/L1"}),
        lent(windows, where,
             {.life = "L1", .limit = all, .links = [this] { return door.urls(); }, .patience = 200ms, .most = 20}) {
    if (where.name() != "cpu") REQUIRE(!windows.stage(where, {.chunk = 4096, .count = 2}));
    door.on("loan/", [this](peer_link l) { return lent.keep(std::move(l)); });
    REQUIRE(!door.listen("tcp://localhost:0"));
  }
  window_table windows;
  device where;
  link_door door;
  loans lent;
};

// body(lender, a client of it, the borrower's windows)
template <class Body>
awaitable<void> with_lender(Body body, bool swept = false) {
  const auto ex = co_await asio::this_coro::executor;
  auto l = std::make_shared<lender>(ex);
  co_await with_site(
      {}, [l](http::server& s) { l->lent.route(s); },
      [&](site& s) -> awaitable<void> {
        http::client asks(ex, {s.at});
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([l]() -> awaitable<void> { co_await l->door.run(); });
          co_await body(*l, asks, window_table(ex));
          l->door.close();
        });
        CHECK_MESSAGE((v || swept), v.error().message());
      },
      swept);
}

void lending(std::function<awaitable<void>(lender&, http::client&, window_table)> body) {
  co_test([body](asio::any_io_executor) -> awaitable<void> { co_await with_lender(body); });
}

awaitable<void> until_free(lender& l, std::uint64_t bytes = 0) {
  for (int i = 0; i < 200 && l.lent.lent() != bytes; ++i) co_await pause(5ms);
  CHECK(l.lent.lent() == bytes);
}

awaitable<void> swept(asio::any_io_executor) {
  std::shared_ptr<lender> outlives;
  try {
    co_await with_lender(
        [](lender& l, http::client& asks, window_table windows) -> awaitable<void> {
          error_code cancelled;
          {
            auto mine = co_await borrow(asks, windows, 5000);
            if (mine)
              cancelled = (co_await async_flush(patterned(5000), mine->memory_to(), 0, {}, completion_level::visible,
                                                as_result))
                              .error();
          }
          co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
          co_await until_free(l);
          CHECK(l.lent.count() == 0);
          if (cancelled) throw boost::system::system_error(cancelled);
        },
        true);
  } catch (const boost::system::system_error&) {
  }
}

loan_terms terms() {
  return {.id = "a1", .life = "L1", .links = {"shm:///x", "tcp://h:1"}, .window = {1, 0xffff'ffff'ffff'fff0u, 3}};
}

}  // namespace

TEST_CASE("loan: what is read is what was written, and nothing else is read") {
  const auto t = terms();
  const auto whole = *http::parse_json(json::serialize(to_json(t)));
  const auto r = read_loan(whole);
  REQUIRE(r.has_value());
  CHECK((r->id == t.id && r->life == t.life && r->links == t.links && r->window == t.window));
  for (auto* member : {"id", "life", "links", "window"}) {
    auto v = whole;
    v.as_object().erase(member);
    CHECK(read_loan(v).error().parameter == "loan." + std::string(member));
  }
  auto v = whole;
  v.as_object()["more"] = 1;
  CHECK(read_loan(v).has_error());
  for (auto* member : {"id", "generation", "size"}) {
    v = whole;
    v.at("window").as_object()[member] = -1;
    CHECK(read_loan(v).error().parameter == "window." + std::string(member));
  }
  v = whole;
  v.at("window").as_object()["size"] = 0;
  CHECK(read_loan(v).has_error());
  v = whole;
  v.as_object()["id"] = "../x";
  CHECK(read_loan(v).has_error());
}

TEST_CASE("loans: what was lent is written and read, counted, and free when its link has ended") {
  lending([](lender& l, http::client& asks, window_table windows) -> awaitable<void> {
    CHECK(*co_await lendable(asks) == all);
    {
      const auto mine = co_await borrow(asks, windows, 600'000);
      REQUIRE(mine.has_value());
      CHECK(*co_await lendable(asks) == all - 147 * 4096);  // whole pages
      CHECK((co_await borrow(asks, windows, 600'000)).error() == errc::out_of_memory);
      const auto other = co_await borrow(asks, windows, 8192);
      REQUIRE(other.has_value());
      CHECK(l.lent.count() == 2);
      const auto wrote = patterned(100'000);
      co_await async_flush(wrote, mine->memory_to(), 12'345);
      co_await async_flush(blank(8192), other->memory_to(), 0);
      const auto read = blank(100'000);
      co_await async_fetch(mine->memory(), 12'345, read);
      CHECK(std::ranges::equal(wrote.bytes(), read.bytes()));
      auto ended = mine->link;
      ended.close();
      co_await until_free(l, 8192);
      CHECK((co_await borrow(asks, windows, 1'000'000)).has_value());
    }
    co_await until_free(l);
    CHECK(l.lent.count() == 0);
  });
}

TEST_CASE("loans: who does not come has it no more, and nobody has another's") {
  lending([](lender& l, http::client& asks, window_table windows) -> awaitable<void> {
    const auto told = co_await asks.post("/v1/loans", R"({"bytes": 4096})");
    REQUIRE((told.has_value() && told->code == 201));
    const auto t = read_loan(*http::parse_json(told->body));
    REQUIRE(t.has_value());
    CHECK(l.lent.lent() == 4096);
    co_await until_free(l);
    auto late = co_await async_connect(windows, t->links.at(0), {.name = "loan/" + t->id}, as_result);
    REQUIRE(late.has_value());
    co_await late->async_closed();

    const auto again = co_await asks.post("/v1/loans", R"({"bytes": 4096})");
    const auto u = read_loan(*http::parse_json(again->body));
    auto first = co_await async_connect(windows, u->links.at(0), {.name = "loan/" + u->id}, as_result);
    REQUIRE(first.has_value());
    co_await async_flush(patterned(100), first->to(u->window), 0);
    auto second = co_await async_connect(windows, u->links.at(0), {.name = "loan/" + u->id}, as_result);
    REQUIRE(second.has_value());
    co_await second->async_closed();
    co_await pause(300ms);  // it has come: it stays
    co_await async_flush(patterned(100), first->to(u->window), 0);
    CHECK(l.lent.lent() == 4096);
    first->close();
    co_await until_free(l);
    CHECK((co_await async_fetch(first->from(u->window), 0, blank(1), {}, as_result)).has_error());
  });
}

TEST_CASE("loans: what is no wish is refused, and nothing is lent") {
  lending([](lender& l, http::client& asks, window_table) -> awaitable<void> {
    for (auto* body : {"", "{}", "[]", R"({"bytes": 0})", R"({"bytes": -1})", R"({"bytes": 1.5})", R"({"bytes": "1"})",
                       R"({"bytes": 1, "more": 1})"}) {
      const auto r = co_await asks.post("/v1/loans", body);
      REQUIRE(r.has_value());
      CHECK_MESSAGE(r->code == 400, body);
    }
    const auto r = co_await asks.post("/v1/loans", R"({"bytes": 18446744073709551615})");
    CHECK(r->code == 507);
    CHECK(l.lent.lent() == 0);
  });
}

TEST_CASE("loans: there are so many at a time, however small") {
  lending([](lender& l, http::client& asks, window_table) -> awaitable<void> {
    for (int i = 0; i < 20; ++i) CHECK((co_await asks.post("/v1/loans", R"({"bytes": 1})"))->code == 201);
    CHECK((co_await asks.post("/v1/loans", R"({"bytes": 1})"))->code == 503);
    CHECK(l.lent.lent() == 20 * 4096);
    co_await until_free(l);
    CHECK((co_await asks.post("/v1/loans", R"({"bytes": 1})"))->code == 201);
  });
}

TEST_CASE("loans: cancelled at every step, nothing stays lent") {
  cancel_at_every_step(swept, {.real = false, .seeds = 20});
}
TEST_CASE("loans: destroyed at every step") { destroy_at_every_step(swept, {.real = false, .seeds = 20}); }

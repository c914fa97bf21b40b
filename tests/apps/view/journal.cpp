#include "view/journal.hpp"

#include <boost/json/serialize.hpp>

#include "../http_fixture.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::view;

TEST_CASE("journal: the last entries are kept, numbered from 1, with the time at which they were added") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    journal j(ex, 2);
    CHECK(j.all().empty());
    j.add({.what = "came", .who = "http://a:1"});
    co_await pause(3ms);
    j.add({.what = "died", .who = "http://a:1"});
    j.add({.what = "resumed", .who = "http://a:1", .to = "http://b:1", .sequence = "r.7", .amount = 5});
    REQUIRE(j.all().size() == 2);
    CHECK(j.all().front().what == "died");
    CHECK(j.all().front().number == 2);
    CHECK(j.all().back().number == 3);
    const auto wall = clock::of(ex).wall_now().time_since_epoch();
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(wall).count();
    CHECK(j.all().back().at_ms <= now);
    CHECK(j.all().back().at_ms > now - 10000);
    const auto told = to_json(j.all());
    CHECK(told[1].at("sequence").as_string() == "r.7");
    CHECK(told[1].at("to").as_string() == "http://b:1");
    CHECK(told[1].at("amount").to_number<int>() == 5);
    CHECK_FALSE(told[0].as_object().contains("to"));
  });
}

TEST_CASE("journal: whoever waits is woken by what is added, once for any number of entries, and may go at any time") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    journal j(ex);
    std::optional<journal::follower> one(j), two(j);
    CHECK(j.followers() == 2);
    j.add({.what = "came", .who = "a"});
    j.add({.what = "died", .who = "a"});
    CHECK(co_await with_deadline(one->more(), 1s));
    CHECK((co_await with_deadline(one->more(), 1ms)).error() == errc::deadline);
    one.reset();
    CHECK(j.followers() == 1);
    j.add({.what = "came", .who = "a"});
    CHECK(co_await with_deadline(two->more(), 1s));
  });
}

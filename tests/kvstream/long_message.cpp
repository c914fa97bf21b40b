// Messages longer than a link's, over every kind of link.
#include "cokv/kvstream/long_message.hpp"

#include <random>

#include "kvstream/link/linked_pair.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("long messages: any length, up to what is allowed; pieces of nothing are refused") {
  link_test(
      [](asio::any_io_executor) -> awaitable<void> {
        auto p = co_await connected();
        std::mt19937_64 random(1);
        for (std::size_t n : {std::size_t(0), std::size_t(1), max_link_message - 8, max_link_message - 7,
                              max_link_message, 5 * max_link_message + 17}) {
          link_message sent(n);
          for (auto& x : sent) x = static_cast<std::byte>(random());
          result<link_message> got = errc::closed;
          const auto v = co_await with(task_group{}, [&](task_group& group) {
            group.spawn(send_long(p->near, sent));
            group.spawn([&]() -> awaitable<void> { got = co_await receive_long(p->far, n); });
          });
          CHECK(!v.error());
          REQUIRE(got.has_value());
          CHECK(*got == sent);
          for (std::size_t room : {n, n + 1}) {
            link_message into(room);
            error_code ec;
            const auto exact = co_await with(task_group{}, [&](task_group& group) {
              group.spawn(send_long(p->near, sent));
              group.spawn([&]() -> awaitable<void> { ec = co_await receive_long_into(p->far, into); });
            });
            CHECK(!exact.error());
            CHECK(ec == (room == n ? error_code() : make_error_code(errc::protocol)));
            CHECK(into == (room == n ? sent : link_message(room)));
          }
        }
        const auto refused = [&](std::vector<link_message> pieces) -> awaitable<error_code> {
          auto q = co_await connected();
          for (auto& one : pieces) co_await q->near.async_send(one);
          co_return (co_await receive_long(q->far, 100)).error();
        };
        link_message four(12), much(8), small(7);
        four[0] = std::byte{4};
        much[0] = std::byte{101};
        CHECK(!co_await refused({four}));
        CHECK((co_await refused({much})) == errc::too_large);
        CHECK((co_await refused({small})) == errc::protocol);
        CHECK((co_await refused({link_message(9)})) == errc::protocol);  // more than it says
        four.resize(10);
        CHECK((co_await refused({four, link_message(3)})) == errc::protocol);
        CHECK((co_await refused({four, link_message()})) == errc::protocol);
      },
      {.seeds = 3});
}

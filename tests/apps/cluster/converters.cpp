#include "cluster/converters.hpp"

#include <doctest/doctest.h>

#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("converters: who stands still with all of its staging leaves others theirs") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto d = open_device(ex, "sim:h200").value();
        cluster::converters all(d, d.make_stream({.name = "convert"}).value());
        const auto a = all.of("a"), b = all.of("b");
        CHECK(a != b);
        CHECK(all.of("a") == a);
        permit turn = co_await a->get()->turn->async_acquire();
        std::vector<buffer> held;
        for (std::size_t i = 0; i < packer::buffers; ++i) held.push_back(co_await a->staging->async_acquire());
        CHECK(a->staging->available() == 0);
        CHECK(b->staging->available() == packer::buffers);
        permit other = co_await b->get()->turn->async_acquire();
        // Those that nobody uses make room for more.
        for (int i = 0; i < 40; ++i) CHECK(all.of(std::to_string(i)));
        CHECK(all.of("a") == a);
      },
      {.real = false, .seeds = 2});
}

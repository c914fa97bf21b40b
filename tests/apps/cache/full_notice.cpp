#include "cache/full_notice.hpp"

#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include "cokv/runtime/result.hpp"
#include "fixture.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;
using cache::full_notice;

namespace {

// What is logged while this is there.
class listening {
 public:
  listening() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("listening", heard_));
  }
  ~listening() { spdlog::set_default_logger(before_); }
  std::vector<std::string> lines() const { return heard_->last_formatted(); }

 private:
  std::shared_ptr<spdlog::logger> before_;
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> heard_ = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(1000);
};

}  // namespace

TEST_CASE("full notice: the first refusal is said at once, more of them once in ten seconds, with their number") {
  full_notice notice;
  time_point now{1h};
  CHECK_FALSE(notice.stored(now));
  CHECK(notice.refused(now) == "no room for more KV: writes are refused until there is");
  for (int i = 0; i < 999; ++i) {
    now += 10ms;
    CHECK_FALSE(notice.refused(now));
    CHECK_FALSE(notice.stored(now));
  }
  now += 10ms;
  CHECK(notice.refused(now) == "still no room for all KV: 1000 more writes were refused");
  CHECK_FALSE(notice.refused(now));
  now += 9s;
  CHECK_FALSE(notice.stored(now));
  now += 1s;
  CHECK(notice.stored(now) == "there is room for KV again; 1002 writes were refused");
  CHECK_FALSE(notice.stored(now));
  CHECK(notice.refused(now) == "no room for more KV: writes are refused until there is");
  now += 60s;
  CHECK(notice.stored(now) == "there is room for KV again; 1 write was refused");
}

TEST_CASE("cache server: writes that find no room now and then, a hundred a second, are six lines a minute") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        listening log;
        auto& time = clock::of(ex);
        cache_server server(ex, 4 * contract_layout().bytes());
        http_store s(ex, server.url());
        const auto begin = time.now();
        std::size_t refused = 0;
        while (time.now() - begin < 60s) {
          {  // all of it is taken, and then it is not
            auto held = co_await server.memory().async_open_write(cache_ns, contract_layout(), contract_keys(100, 4),
                                                                  {}, as_result);
            CHECK(held);
            refused += co_await write_blocks(s, cache_ns, 0, 1) == errc::store_full;
          }
          CHECK(!co_await write_blocks(s, cache_ns, 0, 1, {.force = true}));
          co_await time.async_wait_for(10ms, asio::deferred);
        }
        CHECK(refused > 1000);
        const auto lines = log.lines();
        CHECK(lines.size() >= 6);
        CHECK(lines.size() <= 7);
        for (std::size_t i = 0; i < lines.size(); ++i)
          CHECK(lines[i].find(i == 0 ? "no room for more KV" : "more writes were refused") != std::string::npos);
      },
      {.real = false, .seeds = 3});
}

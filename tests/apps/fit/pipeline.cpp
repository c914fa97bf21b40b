// A pipeline that is measured, here of one thread: all of its stages come together, and come to an end.
#include "fit/pipeline.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::fit;
using namespace cokv::test;

namespace {

fit::options tiny() {
  fit::options o;
  o.model.dir = COKV_SOURCE_DIR "/models/tiny-kjv";
  o.dtype = "f32";
  o.threads = 1;
  return o;
}

}  // namespace

TEST_CASE("fit: doors that are free are as many as were asked for, and each is another") {
  const auto urls = free_doors(20);
  CHECK(std::set(urls.begin(), urls.end()).size() == 20);
  CHECK(std::ranges::all_of(urls, [](auto& url) { return url.starts_with("tcp://127.0.0.1:"); }));
}

TEST_CASE("fit: a pipeline is measured with as many sequences as it has stages, and ends") {
  for (const std::uint32_t stages : {2u, 3u})
    run_real([&](asio::any_io_executor ex) -> awaitable<void> {
      const auto o = tiny();
      const auto where = open_device(ex, "cpu", {.threads = 1}).value();
      const auto urls = free_doors(stages);
      pipeline_times took;
      std::uint32_t ready = 0, ended = 0;
      pipeline_lead first(ex, o, where, urls);
      const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        for (std::uint32_t n = 1; n < stages; ++n)
          group.spawn([&, n]() -> awaitable<void> {
            co_await be_stage(o, where, {.urls = urls, .stage = n}, [&] { ++ready; });
            ++ended;
          });
        took = co_await first.times(40, 16, read_answers);
      });
      CHECK(!v.error());
      CHECK(ready == stages - 1);
      CHECK(ended == stages - 1);
      CHECK(took.first > 0);
      CHECK(took.gaps.size() == stages);
      CHECK(std::ranges::all_of(took.gaps, [](double s) { return s > 0; }));
    });
}

TEST_CASE("fit: a worker whose door is another's says which") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    const auto o = tiny();
    const auto where = open_device(ex, "cpu", {.threads = 1}).value();
    const auto door = network::of(ex).listen({"127.0.0.1", 0}).value();
    const auto url = "tcp://127.0.0.1:" + std::to_string(door.local_endpoint().port);
    std::string said;
    try {
      co_await be_stage(o, where, {.urls = {url, url}, .stage = 1}, [] {});
    } catch (const config_error& e) {
      said = e.what();
    }
    CHECK(said.starts_with("--workers: " + url + ": "));
  });
}

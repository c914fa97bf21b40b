#include "cokv/runtime/trace.hpp"

#include <doctest/doctest.h>

#include <random>
#include <sstream>

using namespace cokv;
using namespace std::chrono_literals;

namespace {

time_point at(int us) { return time_point(std::chrono::microseconds(us)); }
trace::span one(int from, int to, std::string track = "t", std::string name = "n") {
  return {std::move(track), std::move(name), at(from), at(to), {}};
}
using spans = std::vector<trace::span>;

}  // namespace

TEST_CASE("overlap: the part of the transfers' time in which something was computed") {
  CHECK(trace::overlap(spans{}, spans{one(0, 10)}) == 0.0);
  CHECK(trace::overlap(spans{one(0, 10)}, spans{}) == 0.0);
  CHECK(trace::overlap(spans{one(0, 10)}, spans{one(0, 10)}) == 1.0);
  CHECK(trace::overlap(spans{one(0, 10)}, spans{one(10, 20)}) == 0.0);
  CHECK(trace::overlap(spans{one(0, 10)}, spans{one(5, 20)}) == 0.5);
  CHECK(trace::overlap(spans{one(0, 10), one(0, 10), one(5, 10)}, spans{one(0, 2), one(1, 3), one(9, 30)}) == 0.4);
  CHECK(trace::overlap(spans{one(20, 30), one(0, 10)}, spans{one(8, 25)}) == doctest::Approx(0.35));
  CHECK(trace::overlap(spans{one(5, 5)}, spans{one(0, 10)}) == 0.0);
  CHECK(trace::overlap(spans{one(5, 5), one(0, 10)}, spans{one(5, 10), one(7, 7)}) == 0.5);
  CHECK(trace::overlap(spans{one(9, 3), one(0, 2)}, spans{one(1, 2), one(8, 4)}) == 0.5);  // ends before it begins
  CHECK(trace::overlap(spans{one(0, 4), one(4, 8)}, spans{one(0, 2), one(2, 4)}) == 0.5);
  CHECK(trace::overlap(spans{one(-20, -10)}, spans{one(-30, -15)}) == 0.5);
  CHECK(trace::overlap(spans{}, spans{}) == 0.0);
}

TEST_CASE("overlap: agrees with counting every microsecond, for random intervals") {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::array<bool, 64> moved{}, computed{};
    spans m, c;
    auto add = [&](spans& to, std::array<bool, 64>& set) {
      const int a = static_cast<int>(random() % 64), b = static_cast<int>(random() % 65);
      if (a >= b) return;
      to.push_back(one(a, b));
      for (int i = a; i < b; ++i) set[i] = true;
    };
    for (auto n = random() % 8; n--;) add(m, moved);
    for (auto n = random() % 8; n--;) add(c, computed);
    int total = 0, hidden = 0;
    for (int i = 0; i < 64; ++i) total += moved[i], hidden += moved[i] && computed[i];
    CHECK(trace::overlap(m, c) == doctest::Approx(total ? double(hidden) / total : 0.0));
  }
}

TEST_CASE("recorder: off it keeps nothing, on it keeps the newest and counts the rest" *
          doctest::skip(!trace::compiled)) {
  asio::io_context ctx(1);
  auto& r = trace::of(ctx.get_executor());
  CHECK(&r == &trace::of(ctx.get_executor()));
  r.add(one(0, 1));
  {
    auto s = r.scope("track", "name");
  }
  CHECK(r.spans().empty());
  r.enable(3);
  for (int i = 0; i < 5; ++i) r.add(one(i, i + 1, i % 2 ? "odd" : "even"));
  CHECK(r.spans().size() == 3);
  CHECK(r.spans().front().start == at(2));
  CHECK(r.spans("odd").size() == 1);
  std::vector<time_point> back;
  r.look_back([&](const trace::span& s) {
    back.push_back(s.start);
    return back.size() < 2;
  });
  CHECK(back == std::vector{at(4), at(3)});
  CHECK(r.dropped() == 2);
  r.clear();
  {
    auto s = r.scope("track", "name");
    s.arg("bytes", std::int64_t{12});
  }
  REQUIRE(r.spans().size() == 1);
  CHECK(r.spans()[0].end >= r.spans()[0].start);
  CHECK(r.spans()[0].args.size() == 1);
  r.disable();
  r.add(one(0, 1));
  CHECK(r.spans().size() == 1);
}

TEST_CASE("recorder: the trace is JSON with a named thread per track and a lane for what doesn't nest" *
          doctest::skip(!trace::compiled)) {
  asio::io_context ctx(1);
  auto& r = trace::of(ctx.get_executor());
  r.enable();
  r.add(one(10, 20, "copy", "a \"b\"\n"));
  r.add(one(12, 15, "copy", "inside"));
  r.add(one(15, 25, "copy", "across"));
  auto s = one(10, 11, "compute", "k");
  s.args = {{"bytes", std::int64_t{5}}, {"rate", 0.5}, {"who", std::string("x")}, {"odd", 1.0 / 0.0}};
  r.add(s);
  std::ostringstream out;
  r.write_perfetto(out);
  CHECK(out.str() ==
        R"json({"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"cokv"}},
{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":1,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"copy"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":2,"args":{"sort_index":2}},
{"ph":"M","name":"thread_name","pid":1,"tid":3,"args":{"name":"copy (2)"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":3,"args":{"sort_index":3}},
{"ph":"X","pid":1,"tid":2,"ts":0.000,"name":"a \"b\"\u000a","dur":10.000,"args":{}},
{"ph":"X","pid":1,"tid":1,"ts":0.000,"name":"k","dur":1.000,"args":{"bytes":5,"rate":0.5,"who":"x","odd":"inf"}},
{"ph":"X","pid":1,"tid":2,"ts":2.000,"name":"inside","dur":3.000,"args":{}},
{"ph":"X","pid":1,"tid":3,"ts":5.000,"name":"across","dur":10.000,"args":{}}
]}
)json");
}

// What is asked, and when: as the seed says it, everywhere.
#include "load/workload.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "cokv/runtime/error.hpp"

using namespace cokv;
using namespace cokv::workload;
using namespace std::chrono_literals;

TEST_CASE("workload: independent arrivals have the rate's mean and an exponential's spread, and keep their order") {
  const auto all = poisson(parse_lengths("fixed:10:20").value(), {.rate = 50, .requests = 20'000}, 7);
  REQUIRE(all.size() == 20'000);
  double sum = 0, squares = 0, before = 0;
  for (auto& i : all) {
    const double gap = static_cast<double>(i.at.count()) / 1e6 - before;
    before += gap;
    CHECK(gap >= 0);
    sum += gap, squares += gap * gap;
    CHECK(i.prompt_tokens == 10);
    CHECK(i.output_tokens == 20);
  }
  const double mean = sum / 20'000, deviation = std::sqrt(squares / 20'000 - mean * mean);
  CHECK(mean == doctest::Approx(0.02).epsilon(0.03));
  CHECK(deviation == doctest::Approx(0.02).epsilon(0.05));
}

TEST_CASE("workload: a seed makes the same load, another one another") {
  const auto shape = parse_lengths("sharegpt").value();
  const auto one = poisson(shape, {.rate = 4, .requests = 100}, 1);
  CHECK(one == poisson(shape, {.rate = 4, .requests = 100}, 1));
  CHECK(one != poisson(shape, {.rate = 4, .requests = 100}, 2));
  // Known values: what one machine measures another can repeat.
  number_source known(1);
  CHECK(known.bits() == 2469588189546311528u);
  CHECK(known.unit() == doctest::Approx(0.13640703636619363).epsilon(1e-12));
  CHECK(known.below(1000) < 1000);
  const auto until = uniform(shape, {.rate = 10, .seconds = 2.0}, 1);
  REQUIRE(until.size() == 20);
  CHECK(until.front().at == 100ms);
  CHECK(until.back().at == 2s);
}

TEST_CASE("workload: lengths are of their distribution, and what is none is none") {
  struct published {
    const char* name;
    double in, in_deviation, out, out_deviation;
  };
  for (auto p : {published{"sharegpt", 246, 547, 322, 244}, published{"lmsys", 102, 169, 222, 210}}) {
    constexpr double n = 100'000;
    const auto all = poisson(parse_lengths(p.name).value(), {.rate = 1, .requests = 100'000}, 3);
    double in = 0, in_squares = 0, out = 0, out_squares = 0;
    for (auto& i : all) {
      in += i.prompt_tokens, in_squares += double(i.prompt_tokens) * i.prompt_tokens;
      out += i.output_tokens, out_squares += double(i.output_tokens) * i.output_tokens;
      CHECK(i.prompt_tokens >= 4);
      CHECK(i.prompt_tokens <= 8192);
    }
    // What is clipped is missing from the deviation of the longest tail.
    CHECK(in / n == doctest::Approx(p.in).epsilon(0.03));
    CHECK(std::sqrt(in_squares / n - in * in / n / n) == doctest::Approx(p.in_deviation).epsilon(0.15));
    CHECK(out / n == doctest::Approx(p.out).epsilon(0.02));
    CHECK(std::sqrt(out_squares / n - out * out / n / n) == doctest::Approx(p.out_deviation).epsilon(0.05));
  }
  const auto even = uniform(parse_lengths("uniform:5-7:1-2").value(), {.rate = 1, .requests = 3000}, 3);
  std::size_t seen[3] = {};
  for (auto& i : even) {
    REQUIRE(i.prompt_tokens >= 5);
    REQUIRE(i.prompt_tokens <= 7);
    CHECK((i.output_tokens == 1 || i.output_tokens == 2));
    ++seen[i.prompt_tokens - 5];
  }
  for (auto n : seen) CHECK(n > 900);
  for (auto wrong : {"", "fixed", "fixed:1", "fixed:0:1", "fixed:1:0", "fixed:1:2:3", "fixed:-1:2", "uniform:1:2",
                     "uniform:5-4:1-2", "uniform:1-2", "gauss:1:2", "ShareGPT", "fixed:1:99999999999"})
    CHECK_FALSE(parse_lengths(wrong).has_value());
}

TEST_CASE("workload: a trace is read in order of time, and what is wrong with a line is told by its number") {
  std::istringstream good(R"({"at": 2.000001, "prompt_tokens": 5, "output_tokens": 6}

{"at": 0, "prompt_tokens": 7, "output_tokens": 8}
{"at": 123456.789012, "prompt_tokens": 1, "output_tokens": 1})");
  const auto all = read_trace(good);
  REQUIRE(all.size() == 3);
  CHECK(all[0] == load_item{0us, 7, 8});
  CHECK(all[1] == load_item{2000001us, 5, 6});
  CHECK(all[2].at == 123456789012us);
  for (auto wrong :
       {"[]", "{", R"({"at":1})", R"({"at":-1,"prompt_tokens":1,"output_tokens":1})",
        R"({"at":"1","prompt_tokens":1,"output_tokens":1})", R"({"at":1,"prompt_tokens":0,"output_tokens":1})",
        R"({"at":1,"prompt_tokens":1,"output_tokens":1,"more":2})",
        R"({"at":1e300,"prompt_tokens":1,"output_tokens":1})", R"({"at":1,"prompt_tokens":1.5,"output_tokens":1})"}) {
    std::istringstream bad(std::string(R"({"at":0,"prompt_tokens":1,"output_tokens":1})") + "\n" + wrong);
    CAPTURE(wrong);
    try {
      (void)read_trace(bad);
      FAIL("it was taken");
    } catch (const config_error& e) {
      CHECK(std::string(e.what()).starts_with("line 2: "));
    }
  }
}

// Figures of requests, against ones made by hand.
#include "load/measures.hpp"

#include <doctest/doctest.h>

#include <sstream>

#include "http/json.hpp"
#include "load/report.hpp"

using namespace cokv;
using namespace cokv::workload;
using namespace std::chrono_literals;

namespace {

request_record answer(double ttft, double total, std::uint32_t tokens) {
  return {.asked = {1s, 10, tokens},
          .ttft_ms = ttft,
          .total_ms = total,
          .gaps_ms = std::vector<float>(tokens - 1, static_cast<float>((total - ttft) / std::max(tokens - 1, 1u))),
          .prompt_tokens = 10,
          .output_tokens = tokens,
          .sent = true};
}

}  // namespace

TEST_CASE("measures: percentiles are values that were there, by the nearest rank") {
  std::vector<double> values;
  for (int i = 100; i > 0; --i) values.push_back(i);
  const auto f = figures_of(values);
  CHECK(f.count == 100);
  CHECK(f.mean == doctest::Approx(50.5));
  CHECK(f.p50 == 50);
  CHECK(f.p90 == 90);
  CHECK(f.p99 == 99);
  CHECK(f.most == 100);
  const auto one = figures_of({7});
  CHECK(one.p50 == 7);
  CHECK(one.p99 == 7);
  CHECK(figures_of({}).count == 0);
  CHECK(figures_of({1, 2, 3}).p50 == 2);
}

TEST_CASE("measures: TPOT is of what follows the first token, and who failed or was not sent meets nothing") {
  CHECK(answer(100, 400, 4).tpot_ms() == doctest::Approx(100));
  CHECK_FALSE(answer(100, 100, 1).tpot_ms().has_value());
  auto at_once = answer(100, 100, 4);
  at_once.gaps_ms.clear();
  CHECK_FALSE(at_once.tpot_ms().has_value());
  const slo bounds{.ttft_ms = 100, .tpot_ms = 50};
  CHECK(bounds.met_by(answer(100, 250, 4)));
  CHECK_FALSE(bounds.met_by(answer(101, 250, 4)));
  CHECK_FALSE(bounds.met_by(answer(100, 251, 4)));
  CHECK(bounds.met_by(answer(100, 100, 1)));
  auto failed = answer(1, 2, 2);
  failed.error = "status 503";
  CHECK_FALSE(bounds.met_by(failed));
  request_record not_sent{.asked = {2s, 1, 1}, .error = "not sent: too many in flight"};
  const std::vector all{answer(100, 250, 4), answer(200, 300, 2), failed, failed, not_sent};
  const auto s = summarise(all, bounds);
  CHECK(s.asked == 5);
  CHECK(s.sent == 4);
  CHECK(s.answered == 2);
  CHECK(s.failed == 2);
  CHECK(s.not_sent == 1);
  CHECK(s.output_tokens == 6);
  CHECK(s.seconds == doctest::Approx(1.3));
  CHECK(s.asked_per_s == doctest::Approx(2.5));
  CHECK(s.answered_per_s == doctest::Approx(2 / 1.3));
  CHECK(s.attainment == doctest::Approx(0.2));
  REQUIRE(s.errors.size() == 1);
  CHECK(s.errors[0] == std::pair<std::string, std::size_t>("status 503", 2));
  CHECK_FALSE(summarise(all, {}).attainment.has_value());
  // What the user stopped is neither good nor bad, be it late or never due.
  auto with_stopped = all;
  with_stopped.push_back({.asked = {60s, 1, 1}, .stopped = true});
  with_stopped.push_back(answer(1, 2, 2));
  with_stopped.back().stopped = true;
  const auto t = summarise(with_stopped, bounds);
  CHECK(t.stopped == 2);
  CHECK(t.sent == 4);
  CHECK(t.answered == 2);
  CHECK(t.not_sent == 1);
  CHECK(t.asked_per_s == doctest::Approx(2.5));
  CHECK(t.attainment == doctest::Approx(0.2));
  CHECK(summarise({}, bounds).asked == 0);
}

TEST_CASE("measures: what is told of them as a table, as JSON and as a picture") {
  auto failed = answer(1, 2, 2);
  failed.error = "a < b & c";
  const std::vector all{answer(100, 250, 4), answer(200, 300, 2), failed};
  const slo bounds{.ttft_ms = 150};
  const auto s = summarise(all, bounds);
  std::ostringstream table;
  print_table(table, s, bounds);
  CHECK(table.str().find("3 requests: 3 sent, 2 answered, 1 failed, 0 not sent") != std::string::npos);
  CHECK(table.str().find("TTFT <= 150 ms: 33.3 % of the requests") != std::string::npos);
  CHECK(table.str().find("1 request: a < b & c") != std::string::npos);
  const auto v = to_json(s, bounds, all);
  CHECK(v.at("summary").at("answered") == 2);
  CHECK(v.at("summary").at("ttft_ms").at("p50") == 100.0);
  CHECK(v.at("requests").as_array().size() == 3);
  CHECK(v.at("requests").at(2).at("error") == "a < b & c");
  CHECK(v.at("requests").at(2).at("ttft_ms").is_null());
  CHECK(v.at("slo").at("tpot_ms").is_null());
  const auto picture = plot(all, bounds, "a < b & c");
  CHECK(picture.find("<title>a &lt; b &amp; c</title>") != std::string::npos);
  CHECK(picture.find("TTFT, 2 answers") != std::string::npos);
  CHECK(picture.find("150 ms") != std::string::npos);
  CHECK(plot({}, {}, "").ends_with("</svg>\n"));
}

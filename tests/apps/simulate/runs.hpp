// `cokv simulate` as its command line runs it, and what it told.
#pragma once

#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "apps/command.hpp"

namespace cokv::test::simulated {

inline command_outcome run(std::vector<std::string> more) { return run_command("simulate", std::move(more)); }

inline boost::json::value told(const command_folder& dir, std::vector<std::string> more) {
  const auto figures = dir.file("figures.json");
  more.insert(more.end(), {"--json", figures});
  const auto r = run(std::move(more));
  CHECK(r.code == 0);
  CHECK(r.err == "");
  return boost::json::parse(text_of(figures));
}

// When each of a request's tokens came, in milliseconds.
inline std::vector<double> times(const boost::json::value& request) {
  std::vector<double> out{request.at("ttft_ms").to_number<double>()};
  for (auto& g : request.at("gaps_ms").as_array()) out.push_back(out.back() + g.to_number<double>());
  return out;
}

inline void check_times(const boost::json::value& request, const std::vector<double>& by_hand) {
  const auto got = times(request);
  REQUIRE(got.size() == by_hand.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(by_hand[i]).epsilon(1e-6));
}

inline std::string trace_of(const std::vector<int>& outputs, int prompt = 100) {
  std::string out;
  for (int n : outputs)
    out += R"({"at": 0, "prompt_tokens": )" + std::to_string(prompt) + R"(, "output_tokens": )" + std::to_string(n) +
           "}\n";
  return out;
}

inline const std::string llama = COKV_SOURCE_DIR "/bench/geometries/llama-3.1-8b.json";

}  // namespace cokv::test::simulated

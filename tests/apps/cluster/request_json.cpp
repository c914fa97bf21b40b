#include "cluster/request_json.hpp"

#include <doctest/doctest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstring>
#include <random>

#include "http/json.hpp"

using namespace cokv;
using cluster::request_limits;
namespace json = boost::json;

namespace {

constexpr request_limits limits{.tokens = 4096};

// Over the wire: as text.
cluster::parsed<generation_request> again(const generation_request& r) {
  return cluster::read_request(*http::parse_json(json::serialize(cluster::to_json(r))), limits);
}

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool same(const sampling_params& a, const sampling_params& b) {
  bool all = same(a.temperature, b.temperature) && a.top_k == b.top_k && same(a.top_p, b.top_p) &&
             same(a.min_p, b.min_p) && same(a.repetition_penalty, b.repetition_penalty) &&
             same(a.presence_penalty, b.presence_penalty) && same(a.frequency_penalty, b.frequency_penalty) &&
             a.seed == b.seed && a.logit_bias.size() == b.logit_bias.size();
  for (std::size_t i = 0; all && i < a.logit_bias.size(); ++i)
    all = a.logit_bias[i].token == b.logit_bias[i].token && same(a.logit_bias[i].bias, b.logit_bias[i].bias);
  return all;
}

bool same(const generation_request& a, const generation_request& b) {
  return a.prompt == b.prompt && a.max_tokens == b.max_tokens && same(a.sampling, b.sampling) &&
         a.logprobs == b.logprobs && a.stop == b.stop && a.ignore_end_tokens == b.ignore_end_tokens &&
         a.priority == b.priority && a.salt == b.salt && a.continues == b.continues;
}

generation_request rich() {
  generation_request r;
  r.prompt = {0, 1, 2'147'483'647, 7};
  r.max_tokens = 17;
  r.sampling = {.temperature = 0.7f,
                .top_k = 40,
                .top_p = 0.1f,
                .min_p = 1e-45f,
                .repetition_penalty = 1.1f,
                .presence_penalty = -2,
                .frequency_penalty = 0.3333333f,
                .logit_bias = {{5, -std::numeric_limits<float>::infinity()}, {6, -100}, {7, 3.4e38f}},
                .seed = 0xffff'ffff'ffff'fff1u};
  r.logprobs = 5;
  r.stop = {"\n\n", "\"quoted\\\"", "\xc3\xa4\xf0\x9f\x98\x80", std::string("nul\0byte", 8)};
  r.ignore_end_tokens = true;
  r.priority = -8;
  r.salt = "whose \xc3\xa9";
  r.continues = 3;
  return r;
}

}  // namespace

TEST_CASE("request_json: what is read is what was written, bit by bit") {
  auto read = again(rich());
  REQUIRE(read.has_value());
  CHECK(same(*read, rich()));
  generation_request plain;
  plain.prompt = {1};
  read = again(plain);
  REQUIRE(read.has_value());
  CHECK(same(*read, plain));
  CHECK_FALSE(read->logprobs.has_value());
}

TEST_CASE("request_json: every finite float and every seed comes back") {
  std::mt19937_64 random(7);
  auto any = [&] {
    for (;;) {
      const auto bits = static_cast<std::uint32_t>(random());
      float f = 0;
      std::memcpy(&f, &bits, sizeof f);
      if (std::isfinite(f)) return f;
    }
  };
  for (int i = 0; i < 3000; ++i) {
    generation_request r;
    r.prompt = {static_cast<token_id>(random() >> 33)};
    r.sampling = {.temperature = any(), .top_p = any(), .min_p = any(), .repetition_penalty = any(), .seed = random()};
    r.sampling.logit_bias = {{static_cast<token_id>(random() >> 33), any()}};
    auto read = again(r);
    REQUIRE(read.has_value());
    CHECK(same(*read, r));
  }
  for (float f : {0.0f, -0.0f, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) {
    generation_request r;
    r.sampling.temperature = f;
    const auto read = again(r);
    REQUIRE(read.has_value());
    CHECK(same(read->sampling.temperature, f));
  }
}

TEST_CASE("request_json: what is missing, unknown, of another kind or too large is refused by name") {
  struct row {
    std::string_view member, value, at;
  };
  const auto whole = json::serialize(cluster::to_json(rich()));
  auto with = [&](std::string_view member, std::string_view value, bool in_sampling) {
    auto v = json::parse(whole).as_object();
    auto& o = in_sampling ? v["sampling"].as_object() : v;
    const json::string_view name(member.data(), member.size());
    if (value.empty())
      o.erase(name);
    else
      o[name] = json::parse(json::string_view(value.data(), value.size()));
    return cluster::read_request(v, limits);
  };
  for (std::string_view member :
       {"tokens", "max_tokens", "sampling", "stop", "ignore_end_tokens", "priority", "salt", "continues"}) {
    const auto r = with(member, "", false);
    REQUIRE(r.has_error());
    CHECK(r.error().parameter == "request." + std::string(member));
  }
  const std::string long_text = '"' + std::string(1025, 'x') + '"';
  std::string many_stops = "[\"a\"", many_tokens = "[1";
  for (int i = 0; i < 64; ++i) many_stops += ",\"a\"";
  for (int i = 0; i < 4096; ++i) many_tokens += ",1";
  const std::vector<row> rows{
      {"tokens", "7", "request.tokens"},
      {"tokens", "[1.5]", "request.tokens"},
      {"tokens", "[-1]", "request.tokens"},
      {"tokens", "[2147483648]", "request.tokens"},
      {"tokens", "[[1]]", "request.tokens"},
      {"max_tokens", "-1", "request.max_tokens"},
      {"max_tokens", "1e3", "request.max_tokens"},
      {"max_tokens", "4294967296", "request.max_tokens"},
      {"max_tokens", "\"5\"", "request.max_tokens"},
      {"sampling", "[]", "sampling"},
      {"stop", "\"x\"", "request.stop"},
      {"stop", "[1]", "request.stop"},
      {"ignore_end_tokens", "1", "request.ignore_end_tokens"},
      {"priority", "9", "request.priority"},
      {"priority", "-9", "request.priority"},
      {"salt", "5", "request.salt"},
      {"logprobs", "1025", "request.logprobs"},
      {"continues", "4097", "request.continues"},
      {"seed", "1", "request.seed"},
  };
  for (const auto& one : rows) {
    const auto r = with(one.member, one.value, false);
    CAPTURE(one.value);
    REQUIRE(r.has_error());
    CHECK(r.error().parameter == one.at);
  }
  CHECK(with("salt", long_text, false).error().parameter == "request.salt");
  CHECK(with("stop", '[' + long_text + ']', false).error().parameter == "request.stop");
  CHECK(with("stop", many_stops + ']', false).error().parameter == "request.stop");
  CHECK(with("tokens", many_tokens + ']', false).error().parameter == "request.tokens");
  for (const auto& one : std::vector<row>{{"temperature", "\"1\"", "sampling.temperature"},
                                          {"temperature", "1e39", "sampling.temperature"},
                                          {"temperature", "null", "sampling.temperature"},
                                          {"seed", "1.0", "sampling.seed"},
                                          {"seed", "-1", "sampling.seed"},
                                          {"logit_bias", "[[1]]", "sampling.logit_bias"},
                                          {"logit_bias", "[[1,2,3]]", "sampling.logit_bias"},
                                          {"logit_bias", "[[1,true]]", "sampling.logit_bias"},
                                          {"logit_bias", "{}", "sampling.logit_bias"},
                                          {"beam", "4", "sampling.beam"}}) {
    CAPTURE(one.value);
    const auto r = with(one.member, one.value, true);
    REQUIRE(r.has_error());
    CHECK(r.error().parameter == one.at);
  }
  for (std::string_view v : {"null", "[]", "7", "\"x\"", "{}"})
    CHECK(cluster::read_request(json::parse(json::string_view(v.data(), v.size())), limits).has_error());
}

#include "fit/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cokv/runtime/detail/json_file.hpp"

namespace cokv::fit {
namespace {

namespace json = boost::json;

constexpr std::uint64_t longest_file = 1 << 20;
constexpr double longest_seconds = 1e4, longest_pair = 1;
constexpr std::size_t most_points = 1000, most_beside = 4096;

// Of counts, or of pauses in seconds.
enum class along { counts, pauses };

curve curve_of(const detail::fields& given, std::string_view key, along what = along::counts) {
  const auto& all = given.array(key);
  if (all.empty() || all.size() > most_points) given.fail(key, "has to have 1 to 1000 points");
  std::vector<std::pair<double, double>> out;
  for (const auto& one : all) {
    const auto* both = one.if_array();
    error_code ec, also;
    const double x = both && both->size() == 2 ? (*both)[0].to_number<double>(ec) : 0;
    const double y = both && both->size() == 2 ? (*both)[1].to_number<double>(also) : 0;
    if (!both || both->size() != 2 || ec || also)
      given.fail(key, what == along::counts ? "has a point that is not [count, seconds]"
                                            : "has a point that is not [seconds, seconds]");
    const bool ascends = x > (out.empty() ? 0 : out.back().first) && x <= 1e9;
    if (what == along::counts && (!ascends || x != std::floor(x)))
      given.fail(key, fmt::format("{:g}: counts are whole, and ascend from 1 on", x));
    if (!ascends) given.fail(key, fmt::format("{:g}: pauses are longer than 0, and ascend", x));
    if (!(y >= 0 && y <= longest_seconds))
      given.fail(key, fmt::format("{:g} is not in 0 to {:g} seconds", y, longest_seconds));
    if (!out.empty() && y < out.back().second)
      given.fail(key, fmt::format("{:g} take less than {:g}: {:g} seconds at the least", x, out.back().first,
                                  out.back().second));
    out.emplace_back(x, y);
  }
  return curve(std::move(out));
}

std::vector<double> times_of(const detail::fields& given, std::string_view key) {
  const auto& all = given.array(key);
  if (all.empty() || all.size() > most_beside) given.fail(key, "has to have 1 to 4096 numbers");
  std::vector<double> out;
  for (const auto& one : all) {
    error_code ec;
    const double x = one.to_number<double>(ec);
    if (ec || !(x >= 1 && x <= 1e6)) given.fail(key, "has something that is no number in 1 to 1e6");
    if (out.empty() && x != 1) given.fail(key, "begins with 1: a worker beside nobody");
    out.push_back(x);
  }
  return out;
}

double seconds_of(const detail::fields& given, std::string_view key, const json::value& one) {
  error_code ec;
  const double x = one.to_number<double>(ec);
  if (ec || !(x > 0 && x <= longest_seconds))
    given.fail(key, fmt::format("has something that is not above 0, and at most {:g} seconds", longest_seconds));
  return x;
}

std::vector<std::vector<double>> pipelines_of(const detail::fields& given, std::string_view key) {
  const auto& all = given.array(key);
  if (all.empty() || all.size() > most_beside) given.fail(key, "has to have 1 to 4096 lists");
  std::vector<std::vector<double>> out;
  for (const auto& workers : all) {
    const auto* list = workers.if_array();
    const auto how_many = out.size() + 2;
    if (!list || list->empty() || list->size() > how_many)
      given.fail(key, fmt::format("of {} workers has no list of 1 to {} numbers", how_many, how_many));
    auto& mine = out.emplace_back();
    for (const auto& one : *list) mine.push_back(seconds_of(given, key, one));
  }
  return out;
}

json::array json_of(const curve& c, along what = along::counts) {
  json::array out;
  for (auto [x, y] : c.points())
    out.push_back(what == along::counts ? json::array{static_cast<std::uint64_t>(x), y} : json::array{x, y});
  return out;
}

}  // namespace

double curve::at(double x) const noexcept {
  if (points_.empty() || x <= 0) return 0;
  const auto& [first, there] = points_.front();
  if (x <= first || points_.size() == 1) return there * x / first;
  auto after = std::ranges::upper_bound(points_, x, {}, &std::pair<double, double>::first);
  if (after == points_.end()) --after;
  const auto& [x1, y1] = *(after - 1);
  const auto& [x2, y2] = *after;
  return y1 + (y2 - y1) * (x - x1) / (x2 - x1);
}

std::string to_text(const profile& p) {
  json::object o{{"machine", p.machine},
                 {"cores", p.cores},
                 {"model", p.model},
                 {"dtype", p.dtype},
                 {"threads", p.threads},
                 {"layers", p.layers},
                 {"hidden", p.hidden},
                 {"max_positions", p.max_positions},
                 {"prompts", json_of(p.prompts)},
                 {"answers", json_of(p.answers)},
                 {"prompts_end", json_of(p.prompts_end)},
                 {"answers_end", json_of(p.answers_end)},
                 {"prompt_pair", p.prompt_pair},
                 {"answer_pair", p.answer_pair},
                 {"step", p.step},
                 {"token", p.token},
                 {"prompts_beside", json::value_from(p.prompts_beside)},
                 {"answers_beside", json::value_from(p.answers_beside)},
                 {"copy_bytes_per_second", p.copy_bytes_per_second},
                 {"link_bytes_per_second", p.link_bytes_per_second},
                 {"link_seconds", p.link_seconds}};
  if (p.kv_bytes > 0) o["kv_bytes"] = p.kv_bytes;
  if (!p.prompts_idle.points().empty()) o["prompts_idle"] = json_of(p.prompts_idle, along::pauses);
  if (!p.answers_idle.points().empty()) o["answers_idle"] = json_of(p.answers_idle, along::pauses);
  if (p.answer_tokens > 0)
    o["pipeline_tokens"] = json::value_from(p.pipeline_tokens), o["answer_tokens"] = p.answer_tokens;
  if (p.prompt_tokens > 0)
    o["pipeline_prompts"] = json::value_from(p.pipeline_prompts), o["prompt_tokens"] = p.prompt_tokens;
  if (!p.source.empty()) o["source"] = p.source;
  // A field a line: people read it, and compare two.
  std::string out = "{";
  for (const auto& [key, value] : o)
    out += fmt::format("{}\n  \"{}\": {}", out.size() > 1 ? "," : "", std::string_view(key), json::serialize(value));
  return out + "\n}\n";
}

profile parse_profile(std::string_view text, const std::string& file) {
  const auto document = detail::parse_json(text, file);
  const detail::fields given(document, file + ": ");
  given.only({"machine",
              "cores",
              "model",
              "dtype",
              "threads",
              "layers",
              "hidden",
              "max_positions",
              "kv_bytes",
              "prompts",
              "answers",
              "prompt_pair",
              "answer_pair",
              "prompts_end",
              "answers_end",
              "step",
              "token",
              "prompts_beside",
              "answers_beside",
              "prompts_idle",
              "answers_idle",
              "pipeline_tokens",
              "answer_tokens",
              "pipeline_prompts",
              "prompt_tokens",
              "copy_bytes_per_second",
              "link_bytes_per_second",
              "link_seconds",
              "source"},
             "a profile");
  profile p;
  p.machine = given.string("machine");
  p.model = given.string("model");
  p.dtype = given.string("dtype");
  if (p.dtype != "bf16" && p.dtype != "f32") given.fail("dtype", detail::printable(p.dtype) + " is not bf16 or f32");
  if (given.has("source")) p.source = given.string("source");
  p.cores = static_cast<std::uint32_t>(given.uint("cores", 1, 1 << 20));
  p.threads = static_cast<std::uint32_t>(given.uint("threads", 1, p.cores));
  p.layers = static_cast<std::uint32_t>(given.uint("layers", 1, 4096));
  p.hidden = static_cast<std::uint32_t>(given.uint("hidden", 1, 1 << 20));
  p.max_positions = static_cast<std::uint32_t>(given.uint("max_positions", 1, 1 << 30));
  if (given.has("kv_bytes")) p.kv_bytes = static_cast<std::uint32_t>(given.uint("kv_bytes", 1, 1 << 30));
  p.prompts = curve_of(given, "prompts");
  p.answers = curve_of(given, "answers");
  p.prompts_end = curve_of(given, "prompts_end");
  p.answers_end = curve_of(given, "answers_end");
  p.prompt_pair = given.between("prompt_pair", 0, longest_pair);
  p.answer_pair = given.between("answer_pair", 0, longest_pair);
  p.step = given.between("step", 0, longest_seconds);
  p.token = given.between("token", 0, longest_seconds);
  p.prompts_beside = times_of(given, "prompts_beside");
  p.answers_beside = times_of(given, "answers_beside");
  if (p.prompts_beside.size() != p.answers_beside.size())
    given.fail("answers_beside", "is not of as many workers as prompts_beside");
  if (given.has("prompts_idle")) p.prompts_idle = curve_of(given, "prompts_idle", along::pauses);
  if (given.has("answers_idle")) p.answers_idle = curve_of(given, "answers_idle", along::pauses);
  if (given.has("answer_tokens") || given.has("pipeline_tokens")) {
    p.pipeline_tokens = pipelines_of(given, "pipeline_tokens");
    p.answer_tokens = static_cast<std::uint32_t>(given.uint("answer_tokens", 2, std::max(2u, p.max_positions - 1)));
  }
  if (given.has("prompt_tokens") || given.has("pipeline_prompts")) {
    for (const auto& one : given.array("pipeline_prompts"))
      p.pipeline_prompts.push_back(seconds_of(given, "pipeline_prompts", one));
    if (p.pipeline_prompts.size() != p.pipeline_tokens.size())
      given.fail("pipeline_prompts", "is not of as many workers as pipeline_tokens");
    p.prompt_tokens = static_cast<std::uint32_t>(given.uint("prompt_tokens", 1, p.max_positions));
  }
  p.copy_bytes_per_second = given.between("copy_bytes_per_second", 1, 1e16);
  p.link_bytes_per_second = given.between("link_bytes_per_second", 1, 1e16);
  p.link_seconds = given.between("link_seconds", 0, 1);
  return p;
}

profile read_profile(const std::string& file) { return parse_profile(detail::read_file(file, longest_file), file); }

}  // namespace cokv::fit

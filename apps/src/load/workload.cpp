#include "load/workload.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string>
#include <tuple>

#include "cluster/fields.hpp"
#include "cokv/runtime/error.hpp"
#include "http/json.hpp"

namespace cokv::workload {
namespace {

constexpr std::uint32_t longest = 1u << 24;  // tokens
constexpr double latest = 1e9;               // seconds
constexpr std::size_t most_items = 10'000'000;

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t n = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (wrong != std::errc() || end != text.data() + text.size() || n == 0 || n > longest) return std::nullopt;
  return n;
}

// "N", or "N-M" where `range`.
std::optional<length_distribution> even(std::string_view text, bool range) {
  const auto dash = range ? text.find('-') : text.npos;
  const auto least = number(text.substr(0, dash));
  const auto most = dash == text.npos ? least : number(text.substr(dash + 1));
  if (!least || !most || *most < *least || (range && dash == text.npos)) return std::nullopt;
  return length_distribution{.least = *least, .most = *most};
}

std::uint32_t draw(const length_distribution& d, number_source& from) {
  if (d.deviation <= 0) return d.least + static_cast<std::uint32_t>(from.below(std::uint64_t{d.most} - d.least + 1));
  // Of a log-normal the mean is exp(m + s^2 / 2), and (deviation / mean)^2 is exp(s^2) - 1.
  const double variance = std::log1p(d.deviation * d.deviation / (d.mean * d.mean));
  const double log = std::log(d.mean) - variance / 2 + std::sqrt(variance) * from.normal();
  return static_cast<std::uint32_t>(std::clamp(std::round(std::exp(log)), double(d.least), double(d.most)));
}

// next(from, at, n): when the n-th comes, behind the one before.
template <class Next>
std::vector<load_item> generate(const lengths& of, const arrivals& when, std::uint64_t seed, Next next) {
  number_source from(seed);
  std::vector<load_item> out;
  const auto most = when.requests ? *when.requests : most_items;
  for (double at = 0; out.size() < most;) {
    at = next(from, at, out.size());
    if (when.seconds && at > *when.seconds) break;
    const auto [prompt, output] = of.draw(from);
    out.push_back({std::chrono::microseconds(std::llround(at * 1e6)), prompt, output});
  }
  if (!when.requests && out.size() == most_items)
    throw config_error("more than " + std::to_string(most_items) + " requests in that time");
  return out;
}

}  // namespace

double number_source::unit() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
double number_source::exponential(double rate) { return -std::log1p(-unit()) / rate; }

// Box and Muller's: two of them from two even numbers.
double number_source::normal() {
  if (spare_) return *std::exchange(spare_, std::nullopt);
  const double radius = std::sqrt(-2 * std::log1p(-unit())), angle = 2 * std::numbers::pi * unit();
  spare_ = radius * std::sin(angle);
  return radius * std::cos(angle);
}

std::uint64_t number_source::below(std::uint64_t n) {
  const auto even = std::numeric_limits<std::uint64_t>::max() / n * n;
  for (;;)
    if (const auto x = bits_(); x < even) return x % n;
}

std::pair<std::uint32_t, std::uint32_t> lengths::draw(number_source& from) const {
  const auto p = workload::draw(prompt, from);
  return {p, workload::draw(output, from)};
}

std::optional<lengths> parse_lengths(std::string_view text) {
  const auto clipped = [](double mean, double deviation) {
    return length_distribution{.mean = mean, .deviation = deviation, .least = 4, .most = 8192};
  };
  if (text == "sharegpt") return lengths{clipped(246, 547), clipped(322, 244)};
  if (text == "lmsys") return lengths{clipped(102, 169), clipped(222, 210)};
  const auto kind = text.find(':');
  if (kind == text.npos) return std::nullopt;
  const auto numbers = text.substr(kind + 1);
  const auto colon = numbers.find(':');
  if (colon == numbers.npos) return std::nullopt;
  const bool range = text.substr(0, kind) == "uniform";
  if (!range && text.substr(0, kind) != "fixed") return std::nullopt;
  const auto prompt = even(numbers.substr(0, colon), range), output = even(numbers.substr(colon + 1), range);
  if (!prompt || !output) return std::nullopt;
  return lengths{*prompt, *output};
}

std::vector<load_item> poisson(const lengths& of, const arrivals& when, std::uint64_t seed) {
  return generate(of, when, seed,
                  [&](number_source& from, double at, std::size_t) { return at + from.exponential(when.rate); });
}

std::vector<load_item> uniform(const lengths& of, const arrivals& when, std::uint64_t seed) {
  return generate(of, when, seed, [&](number_source&, double, std::size_t n) { return double(n + 1) / when.rate; });
}

std::vector<load_item> read_trace(std::istream& from) {
  std::vector<load_item> out;
  std::string line;
  for (std::size_t n = 1; std::getline(from, line); ++n) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto fail = [&](const std::string& what) { throw config_error("line " + std::to_string(n) + ": " + what); };
    const auto v = http::parse_json(line);
    if (!v) fail(v.error().message);
    cluster::fields f(*v, "the line");
    load_item item;
    const auto* time = f.value("at");
    boost::system::error_code none;
    const double at = time && time->is_number() ? time->to_number<double>(none) : -1;
    item.prompt_tokens = static_cast<std::uint32_t>(f.number("prompt_tokens", longest, 1));
    item.output_tokens = static_cast<std::uint32_t>(f.number("output_tokens", longest, 1));
    if (!(at >= 0) || at > latest) f.refuse("at", "is no time in seconds from 0 on");
    if (auto wrong = f.end()) fail(wrong->message);
    item.at = std::chrono::microseconds(std::llround(at * 1e6));
    out.push_back(item);
    if (out.size() > most_items) fail("more requests than " + std::to_string(most_items));
  }
  std::ranges::sort(out, {}, [](auto& i) { return std::tuple(i.at, i.prompt_tokens, i.output_tokens); });
  return out;
}

}  // namespace cokv::workload

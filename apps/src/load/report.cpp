#include "load/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>

namespace cokv::workload {
namespace json = boost::json;
namespace {

json::object to_json(const figures& f) {
  return {{"count", f.count}, {"mean", f.mean}, {"p50", f.p50}, {"p90", f.p90}, {"p99", f.p99}, {"max", f.most}};
}

json::value known(std::optional<double> v) { return v ? json::value(*v) : json::value(nullptr); }

std::string bounds_text(const slo& bounds) {
  std::string out;
  if (bounds.ttft_ms) out = fmt::format("TTFT <= {:g} ms", *bounds.ttft_ms);
  if (bounds.tpot_ms) out += fmt::format("{}TPOT <= {:g} ms", out.empty() ? "" : " and ", *bounds.tpot_ms);
  return out;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text)
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  return out;
}

// 1, 2 or 5 times a power of ten, at least `v`.
double rounded_up(double v) {
  if (!(v > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(v)));
  for (double step : {1.0, 2.0, 5.0})
    if (step * power >= v) return step * power;
  return 10 * power;
}

constexpr double width = 360, height = 220, left = 46, top = 40, gap = 70;

// The share of values up to each: one panel.
std::string panel(double x, const std::string& name, std::vector<double> values, std::optional<double> bound) {
  std::ranges::sort(values);
  const auto most = rounded_up(std::max(values.empty() ? 1.0 : values.back(), bound.value_or(0)));
  const auto at = [&](double v) { return x + width * v / most; };
  const auto up = [&](double share) { return top + height * (1 - share); };
  std::string out =
      fmt::format("<text x='{}' y='{}' class='name'>{}, {} answers</text>\n", x, top - 12, name, values.size());
  for (double share : {0.0, 0.5, 0.9, 1.0})
    out += fmt::format(
        "<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' class='grid'/><text x='{}' y='{:.1f}' class='y'>{:g} %</text>\n",
        x, x + width, up(share), up(share), x - 6, up(share) + 4, 100 * share);
  for (int i = 0; i <= 4; ++i)
    out += fmt::format("<text x='{:.1f}' y='{}' class='x'>{:g}</text>\n", at(most * i / 4), top + height + 16,
                       most * i / 4);
  out += fmt::format("<text x='{}' y='{}' class='x'>ms</text>\n", x + width / 2, top + height + 32);
  if (bound)
    out += fmt::format(
        "<line x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2}' class='slo'/><text x='{0:.1f}' y='{3}' class='x'>{4:g} "
        "ms</text>\n",
        at(*bound), top, top + height, top - 2, *bound);
  if (values.empty()) return out;
  out += fmt::format("<path class='line' d='M{:.1f} {:.1f}", at(0), up(0));
  // As many points as there is room for.
  const auto n = values.size(), step = std::max<std::size_t>(1, n / 400);
  for (std::size_t i = 0; i < n; i += step)
    out += fmt::format(" L{:.1f} {:.1f}", at(values[i]), up(static_cast<double>(i + 1) / static_cast<double>(n)));
  return out + fmt::format(" L{:.1f} {:.1f}'/>\n", at(values.back()), up(1));
}

}  // namespace

void print_table(std::ostream& out, const summary& s, const slo& bounds) {
  out << fmt::format("{} requests: {} sent, {} answered, {} failed, {} not sent", s.asked, s.sent, s.answered, s.failed,
                     s.not_sent);
  if (s.stopped > 0) out << fmt::format(", {} stopped", s.stopped);
  if (s.late.count > 0) out << fmt::format("; sent late by {:.2f} ms (p99)", s.late.p99);
  out << fmt::format("\nasked {:.2f}/s, answered {:.2f}/s, {:.1f} output tokens/s, {:.1f} s\n\n", s.asked_per_s,
                     s.answered_per_s, s.output_tokens_per_s, s.seconds);
  out << fmt::format("{:<8}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "mean", "p50", "p90", "p99", "max");
  const auto row = [&](const char* name, const figures& f) {
    if (f.count > 0)
      out << fmt::format("{:<8}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", name, f.mean, f.p50, f.p90, f.p99,
                         f.most);
  };
  row("TTFT", s.ttft);
  row("TPOT", s.tpot);
  row("ITL", s.itl);
  row("total", s.total);
  if (s.attainment) out << fmt::format("\n{}: {:.1f} % of the requests\n", bounds_text(bounds), 100 * *s.attainment);
  for (const auto& [what, n] : s.errors) out << fmt::format("{} {}: {}\n", n, n == 1 ? "request" : "requests", what);
}

json::object to_json(const summary& s, const slo& bounds, const std::vector<request_record>& all) {
  json::object errors;
  for (const auto& [what, n] : s.errors) errors[what] = n;
  json::array requests;
  for (const auto& r : all) {
    json::array gaps;
    for (float g : r.gaps_ms) gaps.push_back(static_cast<double>(g));
    const bool ok = r.answered();
    json::object one{{"at_s", static_cast<double>(r.asked.at.count()) / 1e6},
                     {"asked_prompt_tokens", r.asked.prompt_tokens},
                     {"asked_output_tokens", r.asked.output_tokens},
                     {"late_ms", known(r.sent ? std::optional(r.late_ms) : std::nullopt)},
                     {"ttft_ms", known(ok ? std::optional(r.ttft_ms) : std::nullopt)},
                     {"tpot_ms", known(r.tpot_ms())},
                     {"total_ms", known(r.sent ? std::optional(r.total_ms) : std::nullopt)},
                     {"prompt_tokens", r.prompt_tokens},
                     {"output_tokens", r.output_tokens},
                     {"gaps_ms", std::move(gaps)}};
    if (!r.error.empty()) one["error"] = json::string(r.error);
    if (r.stopped) one["stopped"] = true;
    requests.push_back(std::move(one));
  }
  return {{"summary",
           {{"requests", s.asked},
            {"sent", s.sent},
            {"answered", s.answered},
            {"failed", s.failed},
            {"not_sent", s.not_sent},
            {"stopped", s.stopped},
            {"seconds", s.seconds},
            {"asked_per_s", s.asked_per_s},
            {"answered_per_s", s.answered_per_s},
            {"output_tokens_per_s", s.output_tokens_per_s},
            {"prompt_tokens", s.prompt_tokens},
            {"output_tokens", s.output_tokens},
            {"late_ms", to_json(s.late)},
            {"ttft_ms", to_json(s.ttft)},
            {"tpot_ms", to_json(s.tpot)},
            {"itl_ms", to_json(s.itl)},
            {"total_ms", to_json(s.total)},
            {"attainment", known(s.attainment)},
            {"errors", std::move(errors)}}},
          {"slo", {{"ttft_ms", known(bounds.ttft_ms)}, {"tpot_ms", known(bounds.tpot_ms)}}},
          {"requests", std::move(requests)}};
}

std::string plot(const std::vector<request_record>& all, const slo& bounds, const std::string& title) {
  std::vector<double> ttft, tpot;
  for (const auto& r : all) {
    if (r.answered()) ttft.push_back(r.ttft_ms);
    if (const auto t = r.tpot_ms()) tpot.push_back(*t);
  }
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' width='{0}' height='{1}'>\n"
      "<style>text{{font:12px "
      "sans-serif;fill:#222}}.name{{font-weight:bold}}.x{{text-anchor:middle}}.y{{text-anchor:end}}"
      ".grid{{stroke:#ddd}}.line{{fill:none;stroke:#4269d0;stroke-width:2}}.slo{{stroke:#ff725c;stroke-dasharray:4 3;"
      "stroke-width:1.5}}</style>\n<rect width='100%' height='100%' fill='#fff'/>\n<title>{2}</title>\n",
      2 * width + left + gap + 24, top + height + 62, escaped(title));
  out += panel(left, "TTFT", std::move(ttft), bounds.ttft_ms);
  out += panel(left + width + gap, "TPOT", std::move(tpot), bounds.tpot_ms);
  return out + fmt::format("<text x='{}' y='{}'>{}</text>\n</svg>\n", left, top + height + 54, escaped(title));
}

}  // namespace cokv::workload

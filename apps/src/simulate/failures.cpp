#include "simulate/failures.hpp"

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "cokv/runtime/error.hpp"
#include "simulate/roles.hpp"

namespace cokv::simulate {
namespace {

constexpr double longest_run = 365. * 24 * 3600;  // seconds: no run is longer

template <class T>
bool take_number(std::string_view& text, T& into) {
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), into);
  if (wrong != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

void check(const given_failure& f, const std::string& text, const options& o) {
  if (f.prompts && !o.prefill_replicas)
    throw config_error(fmt::format("--fail: {}: there are no --prefill-replicas", text));
  const auto w = f.prompts ? wishes_of(o).front() : wishes_of(o).back();
  if (f.replica >= w.replicas)
    throw config_error(fmt::format("--fail: {}: {}replicas are 0 to {}", text, w.flags, w.replicas - 1));
  if (f.stage >= w.pipeline)
    throw config_error(fmt::format("--fail: {}: stages of {}pipeline are 0 to {}", text, w.flags, w.pipeline - 1));
}

}  // namespace

std::optional<given_failure> parse_failure(std::string_view text) {
  given_failure out;
  if (!take_number(text, out.at) || !(out.at >= 0 && out.at <= longest_run) || !take(text, ":")) return std::nullopt;
  out.prompts = take(text, "prefill");
  if (!take_number(text, out.replica) || !take(text, ".") || !take_number(text, out.stage) || !text.empty())
    return std::nullopt;
  return out;
}

failure_plan failures_of(const options& o) {
  failure_plan out{.mean_seconds = o.mtbf};
  for (auto& text : o.fail) {
    const auto f = parse_failure(text);
    if (!f) throw config_error(fmt::format("--fail: {}: takes SECONDS:REPLICA.STAGE, or :prefillREPLICA.STAGE", text));
    check(*f, text, o);
    out.given.push_back(*f);
  }
  for (auto& [given, flag] : {std::pair{o.detect.has_value(), "--detect"},
                              {o.repair.has_value(), "--repair"},
                              {o.load_bandwidth.has_value(), "--load-bandwidth"},
                              {o.ask_again.has_value(), "--ask-again"},
                              {o.patience.has_value(), "--patience"}})
    if (given && !out.any()) throw config_error(fmt::format("{}: is for --fail or --mtbf", flag));
  if (o.load_bandwidth && o.repair)
    throw config_error("--load-bandwidth: says how long weights are loaded, and --repair how long all of it takes");
  if (o.load_bandwidth && o.model.empty())
    throw config_error("--load-bandwidth: goes with --model, which says how many bytes of weights there are");
  if (o.kv_copies > 0 && o.pipeline == 1) throw config_error("--kv-copies: is for --pipeline of 2 stages or more");
  return out;
}

}  // namespace cokv::simulate

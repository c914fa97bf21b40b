#include "simulate/losses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <map>

#include "simulate/seconds.hpp"

namespace cokv::simulate {
namespace {

namespace json = boost::json;

constexpr std::size_t most_told = 20;  // lines

std::string at(const outcome& got, const std::optional<time_point>& t) {
  return t ? fmt::format("{:.3f} s", got.since_begun(*t)) : "-";
}

json::value at_json(const outcome& got, const std::optional<time_point>& t) {
  return t ? json::value(got.since_begun(*t)) : json::value();
}

void print_copies(std::ostream& out, const outcome& got) {
  std::map<std::string, std::pair<double, std::uint64_t>> stages;  // over all replicas
  for (auto& c : got.copies) {
    auto& [bytes, tokens] = stages[fmt::format("stage {} to {}", c.stage, c.keeper)];
    bytes += c.bytes, tokens += c.tokens;
  }
  for (auto& [name, what] : stages)
    out << fmt::format("copies of KV, {}: {} tokens, {:.3f} GB\n", name, what.second, what.first / 1e9);
}

}  // namespace

loss_figures losses_of(const outcome& got) {
  loss_figures out{.resumed = got.counts.resumed,
                   .restarted = got.counts.restarted,
                   .recomputed_tokens = got.counts.recomputed_tokens};
  for (std::size_t i = 0; i < got.asked.records.size(); ++i) {
    const auto& r = got.asked.records[i];
    const auto& l = got.asked.losses[i];
    out.failed += r.sent && !r.error.empty();
    out.asked_again += l.again > 0;
    out.times += l.again;
    out.recomputed_tokens += l.computed;
    for (float g : r.gaps_ms) out.longest_gap_ms = std::max<double>(out.longest_gap_ms, g);
  }
  out.seconds_lost = seconds_lost(got.outages, got.begun + of_seconds(got.makespan));
  return out;
}

void print_losses(std::ostream& out, const deployment& d, const outcome& got) {
  if (!d.failures.any() && got.copies.empty()) return;
  out << '\n';
  print_copies(out, got);
  if (!d.failures.any()) return;
  out << fmt::format("{:<26}{:>14}{:>14}{:>14}{:>14}\n", "lost", "at", "known", "replaced", "all together");
  for (std::size_t i = 0; i < std::min(most_told, got.outages.size()); ++i) {
    const auto& o = got.outages[i];
    out << fmt::format("{:<26}{:>14}{:>14}{:>14}{:>14}\n", o.host, at(got, o.at), at(got, o.known), at(got, o.replaced),
                       at(got, o.whole));
  }
  if (got.outages.size() > most_told) out << fmt::format("and {} more\n", got.outages.size() - most_told);
  const auto l = losses_of(got);
  out << fmt::format(
      "{} failures, {:.3f} s of a replica lost; {} requests went on by copies, {} began anew, {} were asked again "
      "({} times), {} failed; {} tokens computed again; the longest time between two tokens {:.1f} ms\n",
      got.outages.size(), l.seconds_lost, l.resumed, l.restarted, l.asked_again, l.times, l.failed, l.recomputed_tokens,
      l.longest_gap_ms);
}

void add_losses(json::object& told, const deployment& d, const outcome& got) {
  if (!got.copies.empty()) {
    json::array copies;
    for (auto& c : got.copies)
      copies.push_back(json::object{{"from", c.from}, {"to", c.to}, {"tokens", c.tokens}, {"bytes", c.bytes}});
    told["copies"] = std::move(copies);
  }
  if (!d.failures.any()) return;
  json::array failures;
  for (auto& o : got.outages)
    failures.push_back(json::object{{"host", o.host},
                                    {"role", cluster::to_string(o.role)},
                                    {"replica", o.replica},
                                    {"stage", o.stage},
                                    {"at_s", got.since_begun(o.at)},
                                    {"known_s", at_json(got, o.known)},
                                    {"replaced_s", at_json(got, o.replaced)},
                                    {"whole_s", at_json(got, o.whole)}});
  told["failures"] = std::move(failures);
  const auto l = losses_of(got);
  told["losses"] = json::object{{"seconds", l.seconds_lost},
                                {"resumed", l.resumed},
                                {"restarted", l.restarted},
                                {"asked_again", l.asked_again},
                                {"times_asked_again", l.times},
                                {"failed", l.failed},
                                {"recomputed_tokens", l.recomputed_tokens},
                                {"longest_gap_ms", l.longest_gap_ms}};
  auto& requests = told["requests"].as_array();
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].as_object()["asked_again"] = got.asked.losses[i].again;
}

}  // namespace cokv::simulate

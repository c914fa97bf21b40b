#include "cokv/runtime/sim_fault_plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <stdexcept>

#include "cokv/runtime/detail/splitmix.hpp"

namespace cokv::sim {
namespace {

constexpr std::string_view names[fault_kinds] = {
    "kill",      "pause",     "partition",   "one-way partition", "clog",          "slow link",   "reset",
    "net flips", "disk full", "disk errors", "disk flips",        "device errors", "device slow", "device loss",
};

enum class family { node, link, net, disk, device };

family family_of(fault_kind k) {
  if (k <= fault_kind::pause) return family::node;
  if (k <= fault_kind::reset) return family::link;
  if (k == fault_kind::net_flips) return family::net;
  return k <= fault_kind::disk_flips ? family::disk : family::device;
}

using target = std::pair<std::string, std::string>;

struct targets {
  std::vector<target> of[5];

  explicit targets(const fault_profile& p) {
    auto& nodes = of[static_cast<int>(family::node)];
    for (auto& n : p.nodes) nodes.emplace_back(n, "");
    auto& links = of[static_cast<int>(family::link)];
    links = p.links;
    if (links.empty())
      for (std::size_t i = 0; i < p.nodes.size(); ++i)
        for (std::size_t j = i + 1; j < p.nodes.size(); ++j) links.emplace_back(p.nodes[i], p.nodes[j]);
    if (!links.empty()) of[static_cast<int>(family::net)] = {{"", ""}};
    for (auto& d : p.disks) of[static_cast<int>(family::disk)].emplace_back(d, "");
    of[static_cast<int>(family::device)] = p.devices;
  }
  const std::vector<target>& operator[](fault_kind k) const { return of[static_cast<int>(family_of(k))]; }
};

void check(const fault_profile& p) {
  auto refuse = [](const char* what) { throw std::invalid_argument(std::string("fault_profile: ") + what); };
  if (p.starts < duration(0) || p.horizon < p.starts) refuse("horizon lies before starts");
  if (p.shortest < duration(0) || p.longest < p.shortest) refuse("longest is shorter than shortest");
  if (!std::isfinite(p.faults_per_second) || p.faults_per_second < 0) refuse("faults_per_second is no rate");
  for (double w : p.weights)
    if (!std::isfinite(w) || w < 0) refuse("a weight is negative");
  for (auto& [a, b] : p.links)
    if (a == b) refuse("a link of a host to itself");
}

bool same_target(const fault& f, fault_kind kind, const target& t) {
  return family_of(f.kind) == family_of(kind) && (target(f.target, f.other) == t || target(f.other, f.target) == t);
}

}  // namespace

std::string_view name_of(fault_kind kind) noexcept { return names[static_cast<std::size_t>(kind)]; }

fault_plan fault_plan::make(std::uint64_t seed, const fault_profile& profile) {
  check(profile);
  const targets all(profile);
  double total = 0;
  std::array<double, fault_kinds> weights = profile.weights;
  for (std::size_t k = 0; k < fault_kinds; ++k) {
    if (all[static_cast<fault_kind>(k)].empty()) weights[k] = 0;
    total += weights[k];
  }
  std::vector<fault> faults;
  if (total <= 0 || profile.faults_per_second <= 0) return fault_plan();
  detail::splitmix draw(seed);
  // Gaps are even from nothing to twice the mean: no logarithm, whose last bit differs between platforms.
  const auto widest = duration(static_cast<std::int64_t>(std::min(2e9 / profile.faults_per_second, 1e18)));
  duration at = profile.starts;
  while (faults.size() < profile.most_faults) {
    at += draw.between(duration(1), widest);
    if (at + profile.shortest > profile.horizon) break;
    double pick = draw.unit() * total;
    std::size_t k = 0;
    while (k + 1 < fault_kinds && (weights[k] == 0 || pick >= weights[k])) pick -= weights[k++];
    while (weights[k] == 0) --k;  // rounding left nothing
    const auto kind = static_cast<fault_kind>(k);
    const auto& choice = all[kind];
    target on = choice[draw.below(choice.size())];
    if (kind == fault_kind::one_way && draw.below(2)) std::swap(on.first, on.second);
    auto lasts = std::min(draw.between(profile.shortest, profile.longest), profile.horizon - at);
    if (kind == fault_kind::reset) lasts = duration(0);
    std::size_t active = 0, down = 0;
    bool taken = false;
    for (auto& f : faults) {
      if (f.at + f.lasts < at) continue;
      ++active;
      down += family_of(f.kind) == family::node;
      taken |= same_target(f, kind, on);
    }
    if (taken || active >= profile.most_at_once) continue;
    if (family_of(kind) == family::node && down >= profile.most_nodes_down) continue;
    faults.push_back({kind, at, lasts, std::move(on.first), std::move(on.second)});
  }
  return fault_plan(std::move(faults));
}

duration fault_plan::quiet_from() const noexcept {
  duration last{0};
  for (auto& f : faults_) last = std::max(last, f.at + f.lasts);
  return last;
}

std::string fault_plan::to_string() const {
  std::string text;
  for (auto& f : faults_) {
    char times[80];
    std::snprintf(times, sizeof times, "%14.9f s  ", static_cast<double>(f.at.count()) / 1e9);
    text += times;
    text += name_of(f.kind);
    if (!f.target.empty()) text += " " + f.target;
    if (!f.other.empty())
      text += (family_of(f.kind) == family::device ? " " : f.kind == fault_kind::one_way ? " > " : " - ") + f.other;
    if (f.lasts > duration(0)) {
      std::snprintf(times, sizeof times, " for %.9f s", static_cast<double>(f.lasts.count()) / 1e9);
      text += times;
    }
    text += '\n';
  }
  return text;
}

std::uint64_t fault_plan::hash() const noexcept {
  std::uint64_t h = 1469598103934665603ull;
  auto add = [&h](std::uint64_t v) { h = (h ^ v) * 1099511628211ull; };
  for (auto& f : faults_) {
    add(static_cast<std::uint64_t>(f.kind));
    add(static_cast<std::uint64_t>(f.at.count()));
    add(static_cast<std::uint64_t>(f.lasts.count()));
    for (auto* name : {&f.target, &f.other}) {
      for (char c : *name) add(static_cast<unsigned char>(c));
      add(name->size());
    }
  }
  return h;
}

}  // namespace cokv::sim

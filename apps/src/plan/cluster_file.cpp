#include "plan/cluster_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "cokv/runtime/detail/json_file.hpp"

namespace cokv::plan {
namespace {

constexpr std::uint64_t longest_file = 1 << 20;
constexpr std::size_t most_kinds = 1000;

sim::device_spec gpu_of(const detail::fields& given) {
  const auto& v = given.at("gpu");
  if (v.is_object()) return sim::parse_device_spec(boost::json::serialize(v), given.place("gpu"));
  const auto name = given.string("gpu");
  if (auto known = sim::published_device(name)) return *known;
  given.fail("gpu", detail::printable(name) + " is none of a100, h100, h200, nor an object that says what it can do");
}

machine_kind kind_of(const detail::fields& given) {
  given.only({"name", "count", "gpus", "gpu", "memory_bytes", "link_bytes_per_second", "network_bytes_per_second",
              "network_seconds", "price_per_hour"},
             "a machine");
  machine_kind m;
  m.name = given.string("name");
  const bool plain =
      std::ranges::all_of(m.name, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
  if (m.name.empty() || m.name.size() > 64 || !plain)
    given.fail("name", detail::printable(m.name) + " is not 1 to 64 letters, digits, dots, dashes and underscores");
  m.count = static_cast<std::uint32_t>(given.uint("count", 1, 100'000));
  m.gpus = static_cast<std::uint32_t>(given.uint("gpus", 1, 64));
  m.gpu = gpu_of(given);
  const double all = m.gpu.memory_bytes, sheet = std::max(m.gpu.nvlink_bytes_per_second, m.gpu.pcie_bytes_per_second);
  m.gpu.memory_bytes = given.between_or("memory_bytes", all, 1e6, 1e15);
  if (m.gpu.memory_bytes > all)
    given.fail("memory_bytes", fmt::format("{:g} is more than the GPU has, {:g}", m.gpu.memory_bytes, all));
  m.link_bytes_per_second = given.between_or("link_bytes_per_second", sheet, 1e6, 1e16);
  if (m.link_bytes_per_second > sheet)
    given.fail("link_bytes_per_second",
               fmt::format("{:g} is more than the GPU's links carry one way, {:g}: does it count "
                           "both ways?",
                           m.link_bytes_per_second, sheet));
  m.network_bytes_per_second = given.between("network_bytes_per_second", 1e3, 1e16);
  m.network_seconds = given.between_or("network_seconds", m.network_seconds, 0, 1);
  m.price_per_hour = given.between_or("price_per_hour", 0, 0, 1e9);
  return m;
}

}  // namespace

const machine_kind& cluster::kind(std::string_view name) const {
  std::string names;
  for (auto& m : machines) {
    if (m.name == name) return m;
    names += (names.empty() ? "" : ", ") + m.name;
  }
  throw config_error(detail::printable(name) + " is none of the cluster's machines, which are " + names);
}

cluster parse_cluster(std::string_view text, const std::string& file) {
  const auto document = detail::parse_json(text, file);
  const detail::fields given(document, file + ": ");
  given.only({"machines"}, "a cluster");
  const auto& all = given.array("machines");
  if (all.empty() || all.size() > most_kinds) given.fail("machines", "has to have 1 to 1000 kinds");
  cluster c;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto at = fmt::format("machines[{}]", i);
    const detail::fields one(all[i], file + ": ", at);
    auto m = kind_of(one);
    for (auto& other : c.machines)
      if (other.name == m.name) one.fail("name", detail::printable(m.name) + " is there twice");
    c.machines.push_back(std::move(m));
  }
  return c;
}

cluster read_cluster(const std::string& file) { return parse_cluster(detail::read_file(file, longest_file), file); }

machine_kind read_machine(const std::string& file, const std::string& name) {
  const auto all = read_cluster(file);
  if (name.empty()) return all.machines.front();
  try {
    return all.kind(name);
  } catch (const config_error& e) {
    throw config_error(std::string("--machine: ") + e.what());
  }
}

}  // namespace cokv::plan

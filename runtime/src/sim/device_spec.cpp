#include "cokv/runtime/sim_device_spec.hpp"

#include "cokv/runtime/detail/json_file.hpp"

namespace cokv::sim {
namespace {

constexpr std::uint64_t longest_file = 64 << 10;

const device_spec published[] = {
    {"a100", 80e9, 2.039e12, 32e9, 300e9, 312e12},
    {"h100", 80e9, 3.35e12, 64e9, 450e9, 989e12},
    {"h200", 141e9, 4.8e12, 64e9, 450e9, 989e12},
};

// What no device is below or beyond: a wrong unit shows, and times stay countable in nanoseconds.
struct field {
  std::string_view key;
  double device_spec::*member;
  double low, high;
  bool required;
};
constexpr field known[] = {
    {"memory_bytes", &device_spec::memory_bytes, 1e6, 1e15, true},
    {"memory_bytes_per_second", &device_spec::memory_bytes_per_second, 1e6, 1e16, true},
    {"pcie_bytes_per_second", &device_spec::pcie_bytes_per_second, 1e6, 1e16, true},
    {"nvlink_bytes_per_second", &device_spec::nvlink_bytes_per_second, 1e6, 1e16, false},
    {"flops_per_second", &device_spec::flops_per_second, 1e6, 1e21, true},
    {"launch_seconds", &device_spec::launch_seconds, 1e-9, 1, false},
};

std::string short_number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", v);
  return text;
}

}  // namespace

std::optional<device_spec> published_device(std::string_view name) {
  for (auto& s : published)
    if (s.name == name) return s;
  return std::nullopt;
}

device_spec parse_device_spec(std::string_view text, const std::string& file) {
  const auto document = detail::parse_json(text, file);
  const detail::fields given(document, file + ": ");
  for (const auto& entry : given.raw()) {
    const std::string_view key(entry.key().data(), entry.key().size());
    const bool is_known = std::any_of(std::begin(known), std::end(known), [&](auto& f) { return f.key == key; });
    if (!is_known) given.fail(key, "no such field of a device");
  }
  device_spec spec;
  spec.name = file;
  for (auto& f : known) {
    if (!f.required && !given.has(f.key)) continue;
    const double value = given.number(f.key);
    const bool none = value == 0 && !f.required;
    if (!none && !(value >= f.low && value <= f.high))
      given.fail(f.key, short_number(value) + " is not in " + short_number(f.low) + " to " + short_number(f.high));
    spec.*f.member = value;
  }
  return spec;
}

device_spec read_device_spec(const std::string& file) {
  return parse_device_spec(detail::read_file(file, longest_file), file);
}

}  // namespace cokv::sim

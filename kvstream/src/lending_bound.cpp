#include "cokv/kvstream/lending_bound.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

void check(const lending_bound& b) {
  auto positive = [](double value, const char* name) {
    if (!std::isfinite(value) || value <= 0)
      throw config_error(std::string("lending bound: ") + name + " is not a positive number");
  };
  positive(b.link, "link");
  positive(b.memory, "memory");
  positive(b.kv_bytes, "kv_bytes");
  auto duration = [](lending_bound::seconds value, const char* name) {
    if (!std::isfinite(value.count()) || value.count() < 0)
      throw config_error(std::string("lending bound: ") + name + " is not a duration");
  };
  duration(b.overhead, "overhead");
  duration(b.other, "other");
}

// What a step leaves time for.
double budget(const lending_bound& b) { return b.kv_bytes / b.memory + b.other.count() - b.overhead.count(); }

}  // namespace

double lending_bound::percent() const {
  check(*this);
  return std::clamp(100 * budget(*this) * link / kv_bytes, 0.0, 100.0);
}

std::uint32_t lending_bound::layers(std::uint32_t of) const {
  // A bound that is a whole number of layers but for rounding is that number.
  return static_cast<std::uint32_t>(std::floor(percent() / 100 * of + 1e-9));
}

lending_bound::seconds lending_bound::slowdown(double lent_percent) const {
  check(*this);
  if (!(lent_percent >= 0 && lent_percent <= 100)) throw config_error("lending bound: not 0 to 100 percent");
  if (lent_percent == 0) return seconds(0);
  return seconds(std::max(0.0, lent_percent / 100 * kv_bytes / link - budget(*this)));
}

}  // namespace cokv

#include "simulate/goodput.hpp"

#include <fmt/format.h>

#include <cmath>

#include "load/goodput.hpp"

namespace cokv::simulate {

goodput_found goodput(const options& o, const deployment& d, const workload::slo& bounds,
                      const std::function<void(const trial&)>& tell) {
  constexpr std::size_t fewest = 20;  // requests
  workload::goodput_search search(o.load.rate, o.attainment);
  goodput_found out;
  while (const auto rate = search.next()) {
    trial now{.rate = *rate, .run = simulated(o, d, *rate)};
    now.share = workload::summarise(now.run.asked.records, bounds).attainment.value_or(0);
    if (const auto n = now.run.asked.records.size(); n < fewest)
      throw config_error(
          fmt::format("--duration: {:g} s at {:g} requests/s are {} requests, and of fewer than {} no share "
                      "says much; {:.0f} s would do",
                      *o.load.seconds, *rate, n, fewest, std::ceil(1.5 * fewest / *rate)));
    tell(now);
    const bool none = search.found() == 0;
    if (search.tried(now.share) || none) out.best = std::move(now);
  }
  out.found = search.found();
  return out;
}

}  // namespace cokv::simulate

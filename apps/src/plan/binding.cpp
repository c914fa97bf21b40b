#include "plan/binding.hpp"

#include <algorithm>
#include <array>

namespace cokv::plan {
namespace {

binding of(const workload::request_record& r, const simulate::prompt_journey& j, const workload::slo& bounds) {
  if (r.stopped || bounds.met_by(r)) return binding::nothing;
  if (!r.answered()) return binding::ttft;
  if (bounds.ttft_ms && r.ttft_ms > *bounds.ttft_ms) return j.room_ms > j.prompt_ms ? binding::memory : binding::ttft;
  const double without = (r.total_ms - r.ttft_ms - j.kv_ms) / (r.output_tokens - 1);
  return without <= *bounds.tpot_ms ? binding::link : binding::tpot;
}

}  // namespace

const char* to_string(binding b) noexcept {
  constexpr const char* names[] = {"nothing", "SLO TTFT", "SLO TPOT", "memory", "link"};
  return names[static_cast<std::size_t>(b)];
}

binding binding_of(const simulate::asked_requests& asked, const workload::slo& bounds) {
  std::array<std::size_t, 5> count{};
  for (std::size_t i = 0; i < asked.records.size(); ++i)
    ++count[static_cast<std::size_t>(
        of(asked.records[i], i < asked.journeys.size() ? asked.journeys[i] : simulate::prompt_journey{}, bounds))];
  count[0] = 0;
  const auto most = std::ranges::max_element(count);
  return *most > 0 ? static_cast<binding>(most - count.begin()) : binding::nothing;
}

}  // namespace cokv::plan

#include "fit/sheet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cokv/runtime/error.hpp"
#include "plan/roofline.hpp"

namespace cokv::fit {
namespace {

// As sim_device_spec.hpp says; else it is a file.
std::string_view published_in(std::string_view gpu) {
  constexpr std::pair<std::string_view, std::string_view> sheets[] = {{"a100", "NVIDIA A100 80GB data sheet, SXM"},
                                                                      {"h100", "NVIDIA H100 data sheet, SXM"},
                                                                      {"h200", "NVIDIA H200 data sheet, SXM"}};
  for (auto [name, sheet] : sheets)
    if (gpu == name) return sheet;
  return gpu;
}

}  // namespace

sim::device_spec sheet_of(const std::string& name) {
  if (auto known = sim::published_device(name)) return *known;
  try {
    auto own = sim::read_device_spec(name);
    own.name = name;
    return own;
  } catch (const config_error& e) {
    throw config_error(std::string("--sheet: a100, h100 and h200 are known, and files: ") + e.what());
  }
}

profile profile_of_sheet(const options& o, const model_config& c, const sim::device_spec& gpu) {
  const double bytes = o.dtype == "f32" ? 4 : 2;
  const plan::roofline price(c, bytes, gpu, {.arithmetic = o.arithmetic, .bandwidth = o.bandwidth});
  profile p{.machine = gpu.name,
            .model = o.model.random_weights.empty() ? o.model.dir : o.model.random_weights,
            .dtype = o.dtype,
            .source = fmt::format(
                "{}: {:g} TFLOP/s and {:g} TB/s, of which {:g} and {:g} are taken to be reached; PCIe "
                "{:g} GB/s, other links {:g} GB/s",
                published_in(gpu.name), gpu.flops_per_second / 1e12, gpu.memory_bytes_per_second / 1e12, o.arithmetic,
                o.bandwidth, gpu.pcie_bytes_per_second / 1e9, gpu.nvlink_bytes_per_second / 1e9),
            .layers = c.layers,
            .hidden = c.hidden,
            .max_positions = c.max_positions};
  std::vector<std::pair<double, double>> layer, prompts_end, answers_end;
  for (std::uint32_t n = 1;; n = std::min(2 * n, o.max_batched_tokens)) {
    const double each = price.layers({.tokens = 1. * n}, 1);
    layer.emplace_back(n, each);
    prompts_end.emplace_back(n, each + price.logits(1));
    answers_end.emplace_back(n, each + price.logits(n));
    if (n == o.max_batched_tokens) break;
  }
  p.prompts = p.answers = curve(std::move(layer));
  p.prompts_end = curve(std::move(prompts_end));
  p.answers_end = curve(std::move(answers_end));
  p.prompt_pair = price.pair_seconds();
  p.answer_pair = price.context_seconds();
  p.copy_bytes_per_second = gpu.pcie_bytes_per_second;
  p.link_bytes_per_second = gpu.nvlink_bytes_per_second > 0 ? gpu.nvlink_bytes_per_second : gpu.pcie_bytes_per_second;
  p.kv_bytes = static_cast<std::uint32_t>(price.kv_bytes());
  return p;
}

}  // namespace cokv::fit

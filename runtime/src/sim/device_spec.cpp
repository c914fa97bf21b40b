#include "device_spec.hpp"

namespace cokv::detail {
namespace {

// NVIDIA's data sheets of the SXM modules (A100 80GB, H100, H200): memory, memory bandwidth, dense bf16 rate; the host
// link is PCIe x16, half of the sheet's figure, which counts both directions.
constexpr sim_device_spec specs[] = {
    {"a100", 80e9, 2.039e12, 32e9, 312e12, 3e-6},
    {"h100", 80e9, 3.35e12, 64e9, 989e12, 3e-6},
    {"h200", 141e9, 4.8e12, 64e9, 989e12, 3e-6},
};

}  // namespace

std::optional<sim_device_spec> find_sim_device(std::string_view name) {
  for (auto& s : specs)
    if (s.name == name) return s;
  return std::nullopt;
}

}  // namespace cokv::detail

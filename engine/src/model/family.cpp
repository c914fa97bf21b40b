#include "model/family.hpp"

#include <algorithm>
#include <array>

namespace cokv {
namespace {

constexpr std::array all_families = {&families::bloom, &families::glm, &families::gpt2,
                                     &families::llama, &families::opt, &families::qwen2};

}  // namespace

const family* find_family(std::string_view architecture) noexcept {
  auto found = std::ranges::find(all_families, architecture, &family::architecture);
  return found == all_families.end() ? nullptr : *found;
}

std::string family_names() {
  std::string out;
  for (auto* f : all_families)
    out += std::string(out.empty() ? "" : f == all_families.back() ? " and " : ", ") + std::string(f->architecture);
  return out;
}

}  // namespace cokv

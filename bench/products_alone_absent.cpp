#include "products_alone.hpp"

namespace cokv::bench {

std::optional<double> products_alone(device, stream, dtype, const std::vector<prompt_product>&,
                                     const std::function<void()>&) {
  return std::nullopt;
}

}  // namespace cokv::bench

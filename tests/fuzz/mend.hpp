// Repairs bytes as far as an input asks for it, so that what follows a digest is reached.
#pragma once

#include <vector>

#include "fuzz/input.hpp"

namespace cokv::fuzz {

std::vector<std::byte> mend_frames(const input& in);
std::vector<std::byte> mend_link(const input& in);

}  // namespace cokv::fuzz

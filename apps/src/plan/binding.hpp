// What keeps requests from their bounds. Pure.
#pragma once

#include "simulate/clients.hpp"

namespace cokv::plan {

enum class binding { nothing, ttft, tpot, memory, link };
const char* to_string(binding b) noexcept;

// What kept most of those that did not meet them:
//
// | what   | of a request                                                                             |
// |--------|------------------------------------------------------------------------------------------|
// | memory | its first token was late, mostly since there was no room for its KV where it is decoded  |
// | ttft   | its first token was late otherwise, or it was refused                                    |
// | link   | it took too long a token, and would not have if its KV had been there at once            |
// | tpot   | it took too long a token otherwise                                                       |
binding binding_of(const simulate::asked_requests& asked, const workload::slo& bounds);

}  // namespace cokv::plan

// What an error of Redis means: whether the command goes elsewhere, comes again, or has failed, and with which error_code.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/net.hpp"
#include "store/redis/value.hpp"

namespace cokv::detail {

struct redis_step {
  enum class what : std::uint8_t {
    done,   // it is an answer
    moved,  // its slot is at `to`, from now on
    ask,    // this once at `to`, with ASKING before it
    again,  // the same after a while: its keys are on their way
    failed  // for `why`
  };
  what next = what::done;
  error_code why = {};
  std::uint16_t slot = 0;
  endpoint to = {};  // an empty host: that of the node that said it
};

redis_step step_after(const redis_value& reply);

}  // namespace cokv::detail

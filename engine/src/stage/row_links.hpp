// Rows of the residual stream between two stages.
#pragma once

#include <cstring>

#include "cokv/engine/model.hpp"
#include "cokv/kvstream/long_message.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::detail {

// step->hidden, which has to be left alone meanwhile.
inline awaitable<error_code> send_rows(peer_link to, std::shared_ptr<const batch> step) {
  co_return co_await send_long(std::move(to), std::as_bytes(std::span(step->hidden)));
}

inline awaitable<error_code> receive_rows(peer_link from, std::shared_ptr<batch> step, std::size_t hidden) {
  const auto bytes = step->rows() * hidden * sizeof(float);
  const auto got = co_await receive_long(std::move(from), bytes);
  if (!got) co_return got.error();
  if (got->size() != bytes) co_return errc::protocol;
  step->hidden.resize(step->rows() * hidden);
  std::memcpy(step->hidden.data(), got->data(), bytes);
  co_return error_code();
}

}  // namespace cokv::detail

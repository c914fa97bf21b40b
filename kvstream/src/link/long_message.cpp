#include "cokv/kvstream/long_message.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "detail/bytes.hpp"

namespace cokv {
namespace {

constexpr std::size_t head = 8;  // the first piece begins with the length of all that follows

}  // namespace

awaitable<error_code> send_long(peer_link to, std::span<const std::byte> bytes) {
  auto room = max_link_message - head;
  link_message piece;
  detail::append(piece, static_cast<std::uint64_t>(bytes.size()));
  for (;;) {
    const auto n = std::min(room, bytes.size());
    detail::append(piece, bytes.first(n));
    bytes = bytes.subspan(n);
    if (auto sent = co_await to.async_send(std::move(piece), as_result); !sent) co_return sent.error();
    if (bytes.empty()) co_return error_code();
    piece = {};
    room = max_link_message;
  }
}

awaitable<result<link_message>> receive_long(peer_link from, std::size_t limit) {
  auto out = co_await from.async_receive(as_result);
  if (!out) co_return out.error();
  if (out->size() < head) co_return errc::protocol;
  const auto length = detail::get<std::uint64_t>(out->data());
  if (length > limit) co_return errc::too_large;
  out->erase(out->begin(), out->begin() + head);
  while (out->size() < length) {
    const auto piece = co_await from.async_receive(as_result);
    if (!piece) co_return piece.error();
    if (piece->empty()) co_return errc::protocol;
    detail::append(*out, *piece);
    if (out->size() > length) break;
  }
  if (out->size() != length) co_return errc::protocol;
  co_return std::move(*out);
}

awaitable<error_code> receive_long_into(peer_link from, std::span<std::byte> into) {
  const auto got = co_await receive_long(std::move(from), into.size());
  if (!got) co_return got.error() == errc::too_large ? make_error_code(errc::protocol) : got.error();
  if (got->size() != into.size()) co_return errc::protocol;
  std::ranges::copy(*got, into.begin());
  co_return error_code();
}

}  // namespace cokv

// Messages of any length over a link: cut into messages of the link's, put together on the other side.
//
//     co_await send_long(link, std::as_bytes(std::span(rows)));
//     auto bytes = co_await receive_long(link, limit);               // result<link_message>
//     co_await receive_long_into(link, std::as_writable_bytes(std::span(rows)));
//
// |              | send_long                          | receive_long                                             |
// |--------------|------------------------------------|----------------------------------------------------------|
// | completes    | the link has taken all of it       | all of the oldest one not taken yet is here, verified    |
// | cancellation | every kind: perhaps in its middle, | every kind: likewise                                     |
// |              | then the link is of no use         |                                                          |
// | memory       | of the bytes: until it completes   |                                                          |
// | errors       | the link's                         | the link's; too_large: more than `limit`; protocol:      |
// |              |                                    | pieces that are none of such a message                   |
//
// One of each at a time over a link, on which nothing else is said that way. No memory is taken for more than has come.
// Belongs to the link's context.
#pragma once

#include <cstddef>
#include <span>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/asio.hpp"

namespace cokv {

awaitable<error_code> send_long(peer_link to, std::span<const std::byte> bytes);
awaitable<result<link_message>> receive_long(peer_link from, std::size_t limit);
// One of exactly so many bytes; errc::protocol: of others. The memory is written when all of it has come.
awaitable<error_code> receive_long_into(peer_link from, std::span<std::byte> into);

}  // namespace cokv

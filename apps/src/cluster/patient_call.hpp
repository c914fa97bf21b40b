// Calls of a router that has just come to workers some of which are still held by the one before it: they refuse until that
// one's lease is over, which is soon, and nothing is wrong with them.
//
//     auto reply = co_await ask_patiently(calls, request, 10s, 50ms);   // any reply but such a refusal, or the last one
#pragma once

#include "http/client.hpp"

namespace cokv::cluster {

// 409 held_epoch, or stale_epoch: of this router's own claim before the one that it is about to have, or of another's.
bool is_held(unsigned code, std::string_view body);

awaitable<result<http::reply>> ask_patiently(http::client& calls, http::client_request r, duration patience,
                                             duration pause);
awaitable<result<http::line_stream>> open_patiently(http::client& calls, http::client_request r, duration patience,
                                                    duration pause);

}  // namespace cokv::cluster

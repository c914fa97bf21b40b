// The links of a worker's scope: the first that ends is the scope's error.
#pragma once

#include "cokv/engine/stage_worker.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::detail {

inline awaitable<error_code> until_closed(peer_link link) {
  (void)co_await link.async_closed(as_result);
  co_return link.error() ? link.error() : make_error_code(errc::closed);
}

template <class F>
void each_link(const stage_links& links, F f) {
  for (auto& l : links.ranks)
    if (l) f(l);
  for (auto& l : links.workers)
    if (l) f(l);
  for (auto* l : {&links.before, &links.behind, &links.leader})
    if (*l) f(*l);
}

}  // namespace cokv::detail

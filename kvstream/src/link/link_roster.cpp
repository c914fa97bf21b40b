#include "link/link_roster.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {

void link_roster::introduce(link_hello& mine, end which) {
  std::erase_if(links_, [](const auto& l) { return !l.second.greeting && l.second.link.expired(); });
  mine.worker = worker_;
  mine.order = ++order_;
  mine.sessions.clear();
  for (const auto& [name, e] : links_)
    if (const auto link = e.link.lock(); e.greeting || !link->error()) mine.sessions.push_back(name.first);
  links_[{mine.session, which}];
}

void link_roster::forget(std::uint64_t session, end which) {
  if (const auto found = links_.find({session, which}); found != links_.end() && found->second.greeting)
    links_.erase(found);
}

void link_roster::established(end which, const std::shared_ptr<link_session>& link, const link_hello& theirs) {
  links_[{theirs.session, which}] = {link, theirs.worker, theirs.order, false};
}

std::shared_ptr<link_session> link_roster::accepted(std::uint64_t session, std::uint64_t peer) const {
  const auto found = links_.find({session, end::accepted});
  return found == links_.end() || found->second.peer != peer ? nullptr : found->second.link.lock();
}

std::vector<std::shared_ptr<link_session>> link_roster::dead(const link_hello& theirs) const {
  std::vector<std::shared_ptr<link_session>> out;
  for (const auto& [name, e] : links_) {
    auto link = e.link.lock();
    if (!link || e.peer != theirs.worker) continue;
    const bool named = std::ranges::find(theirs.sessions, name.first) != theirs.sessions.end();
    if (link->error() || (e.order < theirs.order && !named)) out.push_back(std::move(link));
  }
  return out;
}

awaitable<error_code> end_all(std::vector<std::shared_ptr<link_session>> links) {
  for (const auto& link : links) link->abort(errc::unavailable);
  for (const auto& link : links)
    if (auto ended = co_await link->async_closed(as_result); !ended) co_return ended.error();
  co_return error_code();
}

}  // namespace cokv::detail

#include "link/link_roster.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {
namespace {

bool has(const std::vector<std::uint64_t>& all, std::uint64_t one) { return std::ranges::find(all, one) != all.end(); }

}  // namespace

void link_roster::established(std::uint64_t session, std::weak_ptr<link_session> link, std::uint64_t peer) {
  made_[session] = {std::move(link), peer, false};
}

void link_roster::greeted(std::uint64_t session) {
  if (const auto found = made_.find(session); found != made_.end() && found->second.greeting) made_.erase(found);
}

std::vector<std::uint64_t> link_roster::named() {
  std::vector<std::uint64_t> out;
  std::erase_if(made_, [](const auto& m) { return !m.second.greeting && m.second.link.expired(); });
  for (const auto& [session, e] : made_)
    if (const auto link = e.link.lock(); e.greeting || !link->error()) out.push_back(session);
  return out;
}

std::vector<std::shared_ptr<link_session>> link_roster::dead_at(std::uint64_t peer,
                                                                const std::vector<std::uint64_t>& named,
                                                                const std::vector<std::uint64_t>& alive) {
  std::vector<std::shared_ptr<link_session>> out;
  for (const auto& [session, e] : made_) {
    auto link = e.link.lock();
    if (!link || e.peer != peer) continue;
    if (link->error() || (has(named, session) && !has(alive, session))) out.push_back(std::move(link));
  }
  return out;
}

void link_roster::accepted(std::uint64_t session, std::weak_ptr<link_session> link, std::uint64_t peer) {
  std::erase_if(accepted_, [](const auto& a) { return a.second.link.expired(); });
  accepted_[session] = {std::move(link), peer, false};
}

std::shared_ptr<link_session> link_roster::find_accepted(std::uint64_t session, std::uint64_t peer) {
  const auto found = accepted_.find(session);
  return found == accepted_.end() || found->second.peer != peer ? nullptr : found->second.link.lock();
}

std::vector<std::uint64_t> link_roster::alive_with(std::uint64_t peer) {
  std::vector<std::uint64_t> out;
  for (const auto& [session, e] : accepted_)
    if (const auto link = e.link.lock(); link && e.peer == peer && !link->error()) out.push_back(session);
  return out;
}

std::vector<std::shared_ptr<link_session>> link_roster::not_among(std::uint64_t peer,
                                                                  const std::vector<std::uint64_t>& named) {
  std::vector<std::shared_ptr<link_session>> out;
  for (const auto& [session, e] : accepted_)
    if (auto link = e.link.lock(); link && e.peer == peer && (link->error() || !has(named, session)))
      out.push_back(std::move(link));
  return out;
}

awaitable<void> end_all(std::vector<std::shared_ptr<link_session>> links) {
  for (const auto& link : links) link->abort(errc::unavailable);
  for (const auto& link : links) (void)co_await link->async_closed(as_result);
}

}  // namespace cokv::detail

#include "cluster/link_pool.hpp"

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::cluster {

link_pool::link_pool(window_table windows, link_options options, duration back_off)
    : windows_(std::move(windows)), options_(std::move(options)), back_off_(back_off) {}

awaitable<result<peer_link>> link_pool::get(std::string life, std::vector<std::string> urls) {
  std::erase_if(peers_,
                [](auto& p) { return p.second.use_count() == 1 && (!p.second->link || p.second->link.error()); });
  auto& place = peers_[life];
  if (!place) place = std::make_shared<peer>(windows_.get_executor());
  const auto p = place;
  auto turn = co_await p->turn.async_acquire(1, as_result);
  if (!turn) co_return turn.error();
  if (p->link && !p->link.error()) co_return p->link;
  p->link = peer_link();
  auto made = co_await connect(life, urls);
  if (made) p->link = *made;
  co_return made;
}

awaitable<result<peer_link>> link_pool::connect(const std::string& life, const std::vector<std::string>& urls) {
  auto& time = clock::of(windows_.get_executor());
  std::erase_if(passed_over_, [now = time.now()](auto& url) { return url.second <= now; });
  error_code why = errc::not_found;
  // Where all of them failed lately, they are tried again: better late than not at all.
  bool all = true;
  for (auto& url : urls) all &= passed_over_.contains(url);
  for (auto& url : urls) {
    if (!all && passed_over_.contains(url)) continue;
    auto link = co_await async_connect(windows_, url, options_, as_result);
    if (link && link->peer().name.ends_with("/" + life)) co_return std::move(*link);
    if (link) link->close();
    why = link ? make_error_code(errc::unavailable) : link.error();
    if (why == asio::error::operation_aborted || why == errc::namespace_mismatch) co_return why;
    passed_over_[url] = time.now() + back_off_;
  }
  co_return why;
}

void link_pool::close() {
  for (auto& [life, p] : peers_)
    if (p->link) p->link.close();
  peers_.clear();
}

}  // namespace cokv::cluster

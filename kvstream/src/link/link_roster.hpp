// The links of this process, so that a new one to the same peer begins only when nothing of a broken one has an effect
// any more: bytes of it may still lie in a socket's buffer at the far side, and would come after what the new link puts
// into the same window. Each side says which links it holds for alive; the other ends those that are not among them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

class link_session;

class link_roster {
 public:
  explicit link_roster(std::uint64_t worker) : worker_(worker) {}

  std::uint64_t worker() const noexcept { return worker_; }

  // Who connects: the link is named from now on, and until it ends or nothing came of its greeting.
  void begin(std::uint64_t session) { made_[session]; }
  void established(std::uint64_t session, std::weak_ptr<link_session> link, std::uint64_t peer);
  void greeted(std::uint64_t session);
  std::vector<std::uint64_t> named();
  // Of those that were named to the peer and are not among those it holds for alive.
  std::vector<std::shared_ptr<link_session>> dead_at(std::uint64_t peer, const std::vector<std::uint64_t>& named,
                                                     const std::vector<std::uint64_t>& alive);

  // Who accepts.
  void accepted(std::uint64_t session, std::weak_ptr<link_session> link, std::uint64_t peer);
  std::shared_ptr<link_session> find_accepted(std::uint64_t session, std::uint64_t peer);
  std::vector<std::uint64_t> alive_with(std::uint64_t peer);
  std::vector<std::shared_ptr<link_session>> not_among(std::uint64_t peer, const std::vector<std::uint64_t>& named);

 private:
  struct entry {
    std::weak_ptr<link_session> link;
    std::uint64_t peer = 0;
    bool greeting = true;
  };
  std::uint64_t worker_;
  std::map<std::uint64_t, entry> made_, accepted_;
};

// Ends them at once, and waits until nothing of them touches memory.
awaitable<void> end_all(std::vector<std::shared_ptr<link_session>> links);

}  // namespace cokv::detail

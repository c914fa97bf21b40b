// The links of this process, so that a new one to the same peer begins only when nothing of a broken one has an effect
// any more: bytes of it may still lie in a socket's buffer at the far side, and would come after what the new link puts
// into the same window. Each side says which links it holds for alive, and counts them; the other ends older ones that
// are not among them, whoever of the two made them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "link/hello.hpp"

namespace cokv::detail {

class link_session;

class link_roster {
 public:
  explicit link_roster(std::uint64_t worker) : worker_(worker) {}

  // A process that connects to itself has both ends of a link.
  enum class end : std::uint8_t { made, accepted };

  // Fills in what a hello says of this process, and names the link in every list from now on: until it ends, or
  // forget() when nothing came of its greeting.
  void introduce(link_hello& mine, end which);
  void forget(std::uint64_t session, end which);
  void established(end which, const std::shared_ptr<link_session>& link, const link_hello& theirs);

  std::shared_ptr<link_session> accepted(std::uint64_t session, std::uint64_t peer) const;
  bool has_accepted(std::uint64_t session) const { return links_.contains({session, end::accepted}); }
  // Links with that peer that one of the two holds for dead.
  std::vector<std::shared_ptr<link_session>> dead(const link_hello& theirs) const;

 private:
  struct entry {
    std::weak_ptr<link_session> link;
    std::uint64_t peer = 0;
    std::uint64_t order = 0;  // the peer's count
    bool greeting = true;
  };
  std::uint64_t worker_;
  std::uint64_t order_ = 0;
  std::map<std::pair<std::uint64_t, end>, entry> links_;
};

// Ends them at once, and waits until nothing of them touches memory. operation_aborted when cancelled meanwhile.
awaitable<error_code> end_all(std::vector<std::shared_ptr<link_session>> links);

}  // namespace cokv::detail

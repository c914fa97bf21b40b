// Which of several nodes keeps a block: the one whose name and the block's stretch give the highest number (rendezvous
// hashing, Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). Whoever knows the same names
// agrees, in whatever order they stand; when a node comes or goes, only its own share moves.
//
//     cokv::rendezvous where(std::vector<std::string>{"http://a:9009", "http://b:9009"});
//     std::size_t node = where.node_of(key);                              // an index into the names
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cokv/kvstream/block_key.hpp"

namespace cokv {

// Immutable. A node's number for a stretch is the XXH3-64 of twelve bytes: the XXH3-64 of its name, and the stretch's
// four, both little-endian. Of equal numbers the name that sorts first wins.
class rendezvous {
 public:
  rendezvous() = default;
  explicit rendezvous(std::span<const std::string> names);

  std::size_t size() const noexcept { return names_.size(); }
  // Undefined without nodes.
  std::size_t node_of(const block_key& key) const noexcept { return node_of_stretch(key.stretch()); }
  std::size_t node_of_stretch(std::uint32_t stretch) const noexcept;

 private:
  struct name {
    std::uint64_t digest;
    std::size_t index;
  };
  std::vector<name> names_;  // as they sort
};

}  // namespace cokv

// Staging for KV that is converted on its way, of its own for each peer: one that stands still holds up nobody else.
//
//     converters all(device, stream);
//     std::shared_ptr<packer> mine = all.of(ticket.life);      // null: no memory for it
//
// Belongs to one context.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "cokv/kvstream/packer.hpp"

namespace cokv::cluster {

class converters {
 public:
  converters(device where, stream moves) : where_(std::move(where)), moves_(std::move(moves)) {}

  // Kept for a while when nobody uses it, since a device may take long to pin memory.
  std::shared_ptr<packer> of(const std::string& life) {
    constexpr std::size_t kept = 16;
    if (const auto found = all_.find(life); found != all_.end()) return found->second;
    if (all_.size() >= kept) std::erase_if(all_, [](const auto& one) { return one.second.use_count() == 1; });
    auto made = std::make_shared<packer>(where_, moves_);
    if (!made->get()) return nullptr;
    return all_[life] = std::move(made);
  }

 private:
  device where_;
  stream moves_;
  std::map<std::string, std::shared_ptr<packer>> all_;
};

}  // namespace cokv::cluster

// What is the same wherever a part of a prompt's KV lands: at a leader, or at another worker of its model.
#pragma once

#include <vector>

#include "cluster/link_door.hpp"
#include "cokv/kvstream/kv_stream.hpp"

namespace cokv::cluster {

// Leading ones that can be there: so many bytes of them were verified.
inline std::uint32_t verified_tokens(const inbound_stream& in, std::uint32_t first, std::uint32_t tokens) {
  if (in.bytes() == 0) return tokens;
  return first + static_cast<std::uint32_t>(in.arrived() * (tokens - first) / in.bytes());
}

// The links of all workers that send something to this one; none where one of them has not said that it brings it.
inline std::optional<stream_peers> peers_of(const route& way, const topology& from, worker self,
                                            const heard_words& heard) {
  std::map<std::uint32_t, peer_link> all;
  for (auto index : way.received_by(self)) {
    const auto sender = from.number(way.legs()[index].from.worker);
    const auto begun = heard.begun.find(sender);
    if (begun == heard.begun.end()) return std::nullopt;
    all.insert(*begun);
  }
  stream_peers out;
  for (auto& [number, link] : all) out.emplace_back(from.at(number), link);
  return out;
}

}  // namespace cokv::cluster

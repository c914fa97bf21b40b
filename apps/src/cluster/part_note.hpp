// What the leader of a model in parts and its other workers tell each other of prompts' KV, each of which moves its own part of it.
// A codec without I/O.
//
//     leader, of a task that it numbers           worker
//     land {id, attempt, from, wires, blocks} ->  <- ready {life, links, legs}     its windows are open
//                                                 <- over {code, tokens}           all of it is there, or nobody writes any more
//     send {ticket} ->                            <- ready                         it knows the receiver's workers that it sends to
//                                                 <- kept {tokens}                 so many are there, verified
//                                                 <- over {code, bytes}            committed, or nothing of it is under way
//     end ->                                      it ends as soon as it can, and says over
//
// A task is over once, and nothing is said of it behind that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/ticket.hpp"
#include "cokv/kvstream/peer_link.hpp"

namespace cokv::cluster {

struct part_note {
  enum class what : std::uint8_t { land, send, end, ready, kept, over };
  // A prompt to take: whose, and where it is to lie. The wires are of the whole model.
  struct landing {
    std::string id;
    std::uint32_t attempt = 0;
    topology from = topology();
    kv_wire sender, receiver;
    std::uint32_t tokens = 0, first = 0;
    std::vector<std::uint32_t> blocks;
  };

  what kind = what::end;
  std::uint64_t task = 0;
  std::optional<landing> land = {};
  std::optional<ticket> send = {};
  std::optional<ticket_part> part = {};  // of ready, where KV lands
  std::uint32_t tokens = 0;              // of kept, and of over where KV lands: leading ones that are there
  std::uint64_t bytes = 0;               // of over, where it was sent
  error_code code = {};                  // of over
};

constexpr std::size_t most_note_bytes = std::size_t{64} << 20;

link_message encode(const part_note& n);
// errc::protocol for anything that encode() does not make, beyond the order of its members.
result<part_note> read_note(std::span<const std::byte> message);

}  // namespace cokv::cluster

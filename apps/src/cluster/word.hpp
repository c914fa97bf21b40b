// The few words that go over a KV link beside the KV itself, from who computes a prompt to who will decode it. A word is
// a message of its own; a link's messages are in order, its puts are not in order with them.
//
//     co_await link.async_send(encode(word{.kind = word::first, .id = id, .attempt = 1, .token = t}));
//     result<word> heard = read_word(co_await link.async_receive());
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cokv/engine/sampler.hpp"
#include "cokv/kvstream/peer_link.hpp"

namespace cokv::cluster {

struct word {
  enum class what : std::uint8_t {
    begin,   // this link brings the KV of this prompt, of one of the sender's workers
    first,   // the token behind the prompt
    kept,    // so many of the prompt's tokens are there, verified
    failed,  // nothing more will come, and why
  };
  static constexpr std::uint32_t most_logprobs = 1 << 10;

  what kind = what::begin;
  std::string id;
  std::uint32_t attempt = 0;
  std::uint32_t worker = 0;                     // of begin: its number
  token_id token = 0;                           // of first
  std::optional<token_logprobs> logprobs = {};  // of first
  std::uint32_t tokens = 0;                     // of kept
  error_code code = {};                         // of failed: one that error_name.hpp has a name for
};

link_message encode(const word& w);
// errc::protocol for anything that encode() does not make, beyond the order of its members.
result<word> read_word(std::span<const std::byte> message);

}  // namespace cokv::cluster

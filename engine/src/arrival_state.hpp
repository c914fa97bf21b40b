// One arriving prompt: what its handle waits for, and the blocks that others may write meanwhile.
#pragma once

#include "cokv/engine/arrival.hpp"
#include "generation_state.hpp"

namespace cokv::detail {

class arrival_state {
 public:
  using room_waiter = operation<void(error_code, kv_room)>;
  using waiter = operation<void(error_code)>;

  arrival_state(std::shared_ptr<generation_state> g, std::uint32_t leading) : what(std::move(g)), tokens(leading) {}

  bool whole() const noexcept { return tokens == what->report.prompt_tokens; }  // and the token behind it

  // Those that were not here before, and so are written.
  std::vector<block_index> own_blocks(std::uint32_t block_tokens) const {
    std::vector<block_index> out;
    for (std::size_t i = start / block_tokens; i < held.size() && i * block_tokens < tokens; ++i)
      out.push_back(held[i].block());
    return out;
  }

  // Told by the engine, when the answer has.
  void ended(error_code why) {
    why_ = why ? why : error_code(asio::error::eof);
    rooms.complete_all(why_);
    overs.complete_all({});
  }
  error_code why() const noexcept { return why_; }

  const std::shared_ptr<generation_state> what;
  const std::uint32_t tokens;    // leading ones that come from elsewhere
  std::vector<block_hold> held;  // of the room
  bool admitted = false;
  std::uint32_t start = 0;        // tokens that were here before
  std::uint32_t kept = 0;         // leading ones that are shared
  std::optional<token_id> token;  // the one behind the prompt
  operation_list<room_waiter> rooms;
  operation_list<waiter> overs;

 private:
  error_code why_;
};

}  // namespace cokv::detail

#include "stage/slot_space.hpp"

#include <boost/assert.hpp>
#include <string>
#include <utility>

#include "cokv/kvstream/kv_layout.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/size.hpp"

namespace cokv::detail {
namespace {

// Rounds of all microbatches after which what none of them had is over.
constexpr std::uint64_t stale_rounds = 8;

kv_pool pool_of(device& d, const geometry& g, std::uint32_t slots, memory_kind kind) {
  const auto bytes = pool_bytes(g, slots);
  if (d.name() == "cpu") check_memory_for({{"KV blocks", bytes}});
  auto memory = d.allocate(bytes, kind);
  if (!memory)
    throw config_error("kv-blocks: " + std::to_string(slots) + " blocks are " + format_size(bytes) + ", which device " +
                       std::string(d.name()) + " can't give: " + memory.error().message());
  return kv_pool(g, slots, std::move(*memory));
}

}  // namespace

memory_kind slot_space::home_kind(memory_kind kv_memory) noexcept {
  const bool others_reach_it = kv_memory == memory_kind::shared || kv_memory == memory_kind::exportable;
  return others_reach_it ? memory_kind::shared : memory_kind::pinned;
}

memory_kind slot_space::slot_kind(memory_kind kv_memory) noexcept {
  return kv_memory == memory_kind::pinned ? memory_kind::pinned : memory_kind::device;
}

slot_space::slot_space(asio::any_io_executor ex, device where, const kv_pool& home, const stage_sizes& sizes,
                       memory_kind kind)
    : home_(home),
      block_tokens_(sizes.block_tokens),
      pool_(pool_of(where, home.shape(), sizes.slots, kind)),
      slots_(home.blocks(), sizes.slots, stale_rounds * sizes.microbatches),
      copies_(std::move(where)),
      room_(std::move(ex), 1),
      in_(home.blocks()) {}

void slot_space::begin_again() {
  for (bool out : {true, false}) (void)copies_.renew(out);  // else the next copy says why
  slots_.forget_all();
  placed_.clear();
  entered_ = 0;
}

// Each block once, however many of the step's sequences share it.
slot_space::needs slot_space::needs_of(batch& step) {
  needs out;
  ++steps_;
  for (auto& s : step.sequences) {
    const auto end = s.start + s.tokens.size();
    const std::size_t filled = (s.start + block_tokens_ - 1) / block_tokens_;
    s.blocks.resize((end + block_tokens_ - 1) / block_tokens_);
    for (std::size_t i = 0; i < s.blocks.size(); ++i)
      if (std::exchange(in_[s.blocks[i]], steps_) != steps_)
        (i < filled ? out.filled : out.fresh).push_back(s.blocks[i]);
    for (std::size_t i = s.start / block_tokens_; i < s.blocks.size(); ++i) out.changed.push_back(s.blocks[i]);
  }
  return out;
}

awaitable<error_code> slot_space::bring(batch& step, std::span<const block_index> refreshed) {
  for (const auto b : refreshed)
    while (!slots_.forget(b))
      if (auto left = co_await room_.async_receive(as_result); !left) co_return left.error();
  auto wanted = needs_of(step);
  slot_moves moves;
  while (!slots_.begin(wanted.filled, wanted.fresh, moves))
    if (auto left = co_await room_.async_receive(as_result); !left) co_return left.error();
  const auto arrived = bring_in(moves);
  if (!arrived) co_return arrived.error();
  std::vector<std::vector<block_index>> tables;
  for (auto& s : step.sequences) {
    tables.push_back(s.blocks);
    for (auto& b : s.blocks) b = slots_.slot_of(b);
  }
  placed_.push_back({std::move(wanted.changed), std::move(tables), *arrived});
  co_return error_code();
}

// Behind what goes home: blocks that did may be among those that come, and slots among those they left, for blocks that a step begins
// itself as for those that come.
result<event> slot_space::bring_in(const slot_moves& moves) {
  if (moves.in.empty()) return moves.taken ? copies_.going(true).record() : event();
  if (auto ec = copies_.renew(false)) return ec;
  if (auto ec = copies_.going(false).wait(copies_.going(true).record())) return ec;
  std::vector<block_index> there, here;
  for (const auto& m : moves.in) there.push_back(m.slot), here.push_back(m.block);
  blocks_in_ += moves.in.size();
  return copies_.in(pool_, there, home_, here);
}

error_code slot_space::enter(stream& compute) {
  BOOST_ASSERT_MSG(entered_ < placed_.size(), "a step enters that was not brought");
  const auto& p = placed_[entered_++];
  return p.arrived.line() ? compute.wait(p.arrived) : error_code();
}

result<event> slot_space::leave(batch& step) {
  BOOST_ASSERT_MSG(entered_ > 0, "a step leaves that has not entered");
  const auto changed = std::move(placed_.front().changed);
  auto& tables = placed_.front().tables;
  for (std::size_t i = 0; i < tables.size(); ++i) step.sequences[i].blocks = std::move(tables[i]);
  placed_.pop_front();
  --entered_;
  std::vector<block_index> there;
  for (const auto b : changed) there.push_back(slots_.slot_of(b));
  auto gone = copies_.out(pool_, there, home_, changed);
  if (gone) blocks_out_ += changed.size();
  slots_.end();
  (void)room_.try_send(char{});
  return gone;
}

}  // namespace cokv::detail

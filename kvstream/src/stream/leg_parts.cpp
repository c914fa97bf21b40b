#include "stream/leg_parts.hpp"

#include <stdexcept>

#include "cokv/kvstream/digest.hpp"
#include "detail/bytes.hpp"

namespace cokv::detail {

leg_parts parts_of(const stream_side& side, const leg& of, const leg_end& end) {
  leg_parts out;
  if (of.sequences.end() > side.sequences.size()) throw std::out_of_range("a leg of more sequences than the batch has");
  std::vector<std::byte> lengths;
  for (auto s = of.sequences.first; s < of.sequences.end(); ++s) {
    const auto& sequence = side.sequences[s];
    if (sequence.first > sequence.tokens ||
        (sequence.first < sequence.tokens && sequence.first % side.shape.block_tokens() != 0))
      throw std::invalid_argument("a sequence whose receiver has part of a block");
    append(lengths, sequence.tokens);
    append(lengths, sequence.first);
  }
  out.tokens = digest_of(lengths);
  for (auto layer = end.layers.first; layer < end.layers.end(); ++layer)
    for (auto s = of.sequences.first; s < of.sequences.end(); ++s) {
      const auto& sequence = side.sequences[s];
      slice what(side.shape, {layer, 1}, sequence.blocks);
      what.tokens({sequence.first, sequence.tokens - sequence.first}).ends_at(sequence.tokens).planes(of.planes);
      if (of.planes != plane_set::shared && side.shape.kv_heads(layer) > 0) what.heads(end.heads);
      const auto bytes = what.bytes();
      if (bytes == 0) continue;
      out.parts.push_back({layer, s, out.bytes, std::move(what)});
      out.bytes += bytes;
    }
  return out;
}

}  // namespace cokv::detail

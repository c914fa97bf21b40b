// One sequence's KV into a sink while it is being computed, by one of four ways that differ in what they overlap: the
// ladder of DejaVuLib (msr-fiddle/dejavu), whose DEJAVULIB_BASELINE picks one here too. The bytes and their places are
// the same in all.
//
//     auto verdict = co_await with(kv_streamer(to, view, {table, 1000}), [&](kv_streamer& out) -> awaitable<void> {
//       for (std::uint32_t l = 0; l < g.layers(); ++l) co_await out.layer(l, after(model.forward(l, batch)));
//       co_await out.prompt_done();
//       for (int step = 0; step < 20; ++step) co_await out.token(after(model.step(batch)));
//       co_await out.commit();
//     });
//
// | mode | DEJAVULIB_BASELINE | a layer of the prompt | the prompt's end | a new token |
// |---|---|---|---|---|
// | naive | 0 | | each fragment copied and waited for | the same |
// | buffered | 1 | | packed, waited for | packed, waited for |
// | layered | 2 | packed and sent when computed | waited for | packed, waited for |
// | all | 3 | packed and sent when computed | | sent while the next one is computed |
//
// In the sink lies the prompt, layer by layer, each in slice order, then each token with all its layers: bytes() of the
// slices say where. Cancellation, memory and errors are transfer_group's.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "cokv/kvstream/transfer_group.hpp"

namespace cokv {

enum class streaming_mode : std::uint8_t { naive = 0, buffered = 1, layered = 2, all = 3 };

// "naive", "buffered", "layered", "all", or DejaVuLib's "0" to "3".
std::optional<streaming_mode> parse_streaming_mode(std::string_view text);
// What DEJAVULIB_BASELINE says; `otherwise` where it is not set. Throws config_error for anything else.
streaming_mode streaming_mode_from_environment(streaming_mode otherwise = streaming_mode::all);

// Where the sequence lies, and how many of its tokens are the prompt's; there is room in its blocks for those to come.
struct streamed_sequence {
  std::vector<std::uint32_t> blocks;
  std::uint32_t prompt = 0;
};

struct kv_streamer_options {
  streaming_mode mode = streaming_mode_from_environment();
  transfer_group_options transfers = {};
};

class kv_streamer : public transfer_group {
 public:
  kv_streamer(sink to, kv_view from, streamed_sequence what, kv_streamer_options options = {});

  // Bytes of the prompt in the sink, and of each token behind it.
  std::uint64_t prompt_bytes() const noexcept { return layer_at_.back(); }
  std::uint64_t token_bytes() const;

  // In order of layers, then the prompt's end, then tokens; anything else throws std::logic_error.
  awaitable<void> layer(std::uint32_t layer, event computed);
  awaitable<void> prompt_done();
  // Of the next position, all layers. Throws std::out_of_range beyond the blocks.
  awaitable<void> token(event computed);

 private:
  slice part(index_range layers, index_range tokens) const;
  awaitable<void> send(slice what, std::uint64_t offset, event computed);

  kv_view from_;
  streamed_sequence what_;
  streaming_mode mode_;
  std::vector<std::uint64_t> layer_at_;  // where each layer of the prompt begins, and the prompt ends
  std::uint32_t next_layer_ = 0;
  std::uint32_t tokens_ = 0;  // with the prompt's
  std::uint64_t token_at_ = 0;
  bool prompt_done_ = false;
  event computed_;  // of the last layer
};

}  // namespace cokv

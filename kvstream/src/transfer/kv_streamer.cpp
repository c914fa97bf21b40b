#include "cokv/kvstream/kv_streamer.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cokv/runtime/error.hpp"

namespace cokv {

std::optional<streaming_mode> parse_streaming_mode(std::string_view text) {
  constexpr std::string_view names[] = {"naive", "buffered", "layered", "all"};
  for (std::uint8_t i = 0; i < 4; ++i)
    if (text == names[i] || text == std::string_view("0123").substr(i, 1)) return static_cast<streaming_mode>(i);
  return {};
}

streaming_mode streaming_mode_from_environment(streaming_mode otherwise) {
  const char* text = std::getenv("DEJAVULIB_BASELINE");
  if (!text || !*text) return otherwise;
  if (auto mode = parse_streaming_mode(text)) return *mode;
  throw config_error(std::string("DEJAVULIB_BASELINE=") + text + ": 0, 1, 2, 3, naive, buffered, layered or all");
}

kv_streamer::kv_streamer(sink to, kv_view from, streamed_sequence what, kv_streamer_options options)
    : transfer_group(std::move(to), options.transfers),
      from_(std::move(from)),
      what_(std::move(what)),
      mode_(options.mode),
      tokens_(what_.prompt) {
  for (std::uint32_t l = 0; l < from_.layout().shape().layers(); ++l) {
    layer_at_.push_back(token_at_);
    token_at_ += part({l, 1}, {0, what_.prompt}).bytes();
  }
  layer_at_.push_back(token_at_);
}

slice kv_streamer::part(index_range layers, index_range tokens) const {
  slice s(from_.layout().shape(), layers, what_.blocks);
  s.tokens(tokens);
  return s;
}

std::uint64_t kv_streamer::token_bytes() const { return part({0, next_layer_}, {0, 1}).bytes(); }

awaitable<void> kv_streamer::send(slice what, std::uint64_t offset, event computed) {
  if (mode_ != streaming_mode::naive) co_return co_await gather(from_, std::move(what), offset, std::move(computed));
  auto fragments = from_.fragments(what);
  if (!fragments) co_return fail(fragments.error());
  for (auto& f : *fragments) {
    const auto n = f.size();
    co_await flush_alone(std::move(f), offset, computed);
    offset += n;
  }
}

awaitable<void> kv_streamer::layer(std::uint32_t layer, event computed) {
  if (layer != next_layer_ || prompt_done_) throw std::logic_error("kv_streamer: layers come once, in their order");
  ++next_layer_;
  computed_ = computed;
  if (mode_ == streaming_mode::layered || mode_ == streaming_mode::all)
    co_await send(part({layer, 1}, {0, what_.prompt}), layer_at_[layer], std::move(computed));
}

awaitable<void> kv_streamer::prompt_done() {
  if (next_layer_ + 1 != layer_at_.size() || prompt_done_)
    throw std::logic_error("kv_streamer: the prompt ends once, after its last layer");
  prompt_done_ = true;
  if (mode_ == streaming_mode::naive || mode_ == streaming_mode::buffered)
    co_await send(part({0, next_layer_}, {0, what_.prompt}), 0, computed_);
  if (mode_ != streaming_mode::all) co_await settled();
}

awaitable<void> kv_streamer::token(event computed) {
  if (!prompt_done_) throw std::logic_error("kv_streamer: tokens come after the prompt");
  auto what = part({0, next_layer_}, {tokens_, 1});
  const auto at = token_at_, n = what.bytes();
  ++tokens_;
  token_at_ += n;
  if (mode_ == streaming_mode::all) co_await settled();  // of the token before
  co_await send(std::move(what), at, std::move(computed));
  if (mode_ != streaming_mode::all) co_await settled();
}

}  // namespace cokv

#include "cokv/kvstream/topology.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <stdexcept>

#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

[[noreturn]] void fail(const std::string& what) { throw config_error("topology: " + what); }

std::string bounds(std::uint32_t value, std::uint32_t most) {
  return std::to_string(value) + ", not 1 to " + std::to_string(most);
}

// Part `index` of `n` things in `parts` ranges whose sizes differ by one at most.
index_range share(std::uint32_t n, std::uint32_t parts, std::uint32_t index) {
  auto cut = [&](std::uint64_t i) { return static_cast<std::uint32_t>(n * i / parts); };
  return {cut(index), cut(std::uint64_t{index} + 1) - cut(index)};
}

std::uint32_t ceil_div(std::uint64_t a, std::uint64_t b) { return static_cast<std::uint32_t>((a + b - 1) / b); }

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take(std::string_view& text, std::uint32_t& number) {
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

topology::topology(std::uint32_t depth, std::uint32_t degree, std::uint32_t microbatch,
                   std::vector<std::uint32_t> starts)
    : depth_(depth), degree_(degree), microbatch_(microbatch), starts_(std::move(starts)) {
  if (depth_ == 0 || depth_ > max_depth) fail("the pipeline's depth is " + bounds(depth_, max_depth));
  if (degree_ == 0 || degree_ > max_degree) fail("the tensor-parallel degree is " + bounds(degree_, max_degree));
  if (workers() > max_workers) fail("the number of workers is " + bounds(workers(), max_workers));
  if (starts_.empty()) return;
  if (starts_.size() != depth_)
    fail(std::to_string(starts_.size()) + " first layers given for " + std::to_string(depth_) + " stages");
  if (starts_.front() != 0) fail("the first stage begins at layer " + std::to_string(starts_.front()) + ", not 0");
  if (auto bad = std::ranges::adjacent_find(starts_, std::ranges::greater_equal{}); bad != starts_.end())
    fail("a stage begins at layer " + std::to_string(bad[1]) + ", after one that begins at " + std::to_string(bad[0]));
  if (starts_.back() >= geometry::max_layers) fail("a stage begins at layer " + std::to_string(starts_.back()));
  if (depth_ == 1) starts_.clear();  // one topology, one description
}

std::string topology::text() const {
  auto out = "pp" + std::to_string(depth_);
  for (std::size_t i = 0; i < starts_.size(); ++i) out += (i == 0 ? "@" : ",") + std::to_string(starts_[i]);
  out += "xtp" + std::to_string(degree_);
  if (microbatch_ > 0) out += "xmb" + std::to_string(microbatch_);
  return out;
}

std::optional<topology> topology::parse(std::string_view text) {
  if (text.size() > max_text) return std::nullopt;
  auto rest = text;
  std::uint32_t depth = 0, degree = 0, microbatch = 0;
  std::vector<std::uint32_t> starts;
  if (!take(rest, "pp") || !take(rest, depth)) return std::nullopt;
  for (auto separator = "@"; take(rest, separator); separator = ",")
    if (!take(rest, starts.emplace_back())) return std::nullopt;
  if (!take(rest, "xtp") || !take(rest, degree)) return std::nullopt;
  if (take(rest, "xmb") && !take(rest, microbatch)) return std::nullopt;
  if (!rest.empty()) return std::nullopt;
  try {
    topology out(depth, degree, microbatch, std::move(starts));
    // Leading zeros and the like: whoever compares texts compares topologies.
    if (out.text() == text) return out;
  } catch (const config_error&) {
  }
  return std::nullopt;
}

worker topology::at(std::uint32_t number) const {
  if (number >= workers()) throw std::out_of_range("topology: no worker " + std::to_string(number));
  return {number / degree_, number % degree_};
}

void topology::check(std::uint32_t layers) const {
  if (depth_ > layers) fail(std::to_string(depth_) + " stages for " + std::to_string(layers) + " layers");
  if (!starts_.empty() && starts_.back() >= layers)
    fail("a stage begins at layer " + std::to_string(starts_.back()) + " of " + std::to_string(layers));
}

index_range topology::layers(std::uint32_t of_layers, std::uint32_t stage) const {
  if (stage >= depth_) throw std::out_of_range("topology: no stage " + std::to_string(stage));
  if (starts_.empty()) return share(of_layers, depth_, stage);
  auto end = stage + 1 < depth_ ? starts_[stage + 1] : of_layers;
  return {starts_[stage], end - starts_[stage]};
}

index_range topology::heads(std::uint32_t of_heads, std::uint32_t rank) const {
  if (rank >= degree_) throw std::out_of_range("topology: no rank " + std::to_string(rank));
  if (degree_ <= of_heads) return share(of_heads, degree_, rank);
  return {share(of_heads, degree_, rank).first, of_heads > 0 ? 1u : 0u};
}

index_range topology::ranks(std::uint32_t of_heads, std::uint32_t head) const {
  if (head >= of_heads) throw std::out_of_range("topology: no head " + std::to_string(head));
  // The last rank whose range begins at or before this head, seen from both cases of heads().
  auto end = ceil_div((std::uint64_t{head} + 1) * degree_, of_heads);
  auto first = degree_ <= of_heads ? end - 1 : ceil_div(std::uint64_t{head} * degree_, of_heads);
  return {first, end - first};
}

batch_slot topology::slot(std::uint32_t sequence) const noexcept {
  if (microbatch_ == 0) return {0, sequence};
  return {sequence / microbatch_, sequence % microbatch_};
}

std::uint32_t topology::microbatches(std::uint32_t sequences) const noexcept {
  if (microbatch_ == 0) return sequences > 0 ? 1 : 0;
  return ceil_div(sequences, microbatch_);
}

}  // namespace cokv

#include "cokv/kvstream/geometry.hpp"

#include <numeric>
#include <string>

#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

[[noreturn]] void bad_geometry(const std::string& what) { throw config_error("geometry: " + what); }

std::string layer_name(std::uint32_t layer) { return "layer " + std::to_string(layer); }

bool plain_name(const std::string& name) {
  if (name.empty() || name.size() > 64) return false;
  for (char c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  return true;
}

void check_plane(const layer_group& g, std::size_t index) {
  auto& p = g.planes[index];
  if (!plain_name(p.name))
    bad_geometry(layer_name(g.first) + ": plane name '" + p.name + "' is not 1 to 64 of a-z, 0-9 and _");
  for (std::size_t other = 0; other < index; ++other)
    if (g.planes[other].name == p.name) bad_geometry(layer_name(g.first) + ": plane '" + p.name + "' is there twice");
  if (size_of(p.type) == 0) bad_geometry(layer_name(g.first) + ": plane '" + p.name + "' has an unknown dtype");
  if (p.dim == 0) bad_geometry(layer_name(g.first) + ": plane '" + p.name + "' has dim 0");
}

}  // namespace

std::uint64_t block_layout::bytes() const noexcept {
  return std::accumulate(segments.begin(), segments.end(), std::uint64_t{0});
}

geometry::geometry(std::uint32_t block_tokens, std::vector<layer_group> groups)
    : block_tokens_(block_tokens), groups_(std::move(groups)) {
  if (block_tokens_ == 0 || block_tokens_ > max_block_tokens)
    bad_geometry("block_tokens is " + std::to_string(block_tokens_) + ", not 1 to " + std::to_string(max_block_tokens));
  if (groups_.empty()) bad_geometry("no layers");

  std::uint64_t next = 0;
  for (auto& g : groups_) {
    if (g.first != next)
      bad_geometry("a layer group begins at " + layer_name(g.first) + ", expected " +
                   layer_name(static_cast<std::uint32_t>(next)));
    if (g.count == 0) bad_geometry("the layer group at " + layer_name(g.first) + " is empty");
    next += g.count;
    if (next > max_layers) bad_geometry("more than " + std::to_string(max_layers) + " layers");
    if (g.planes.empty()) bad_geometry(layer_name(g.first) + " has no planes");

    // Sizes stay far below 2^64: dim and heads are 32 bits, the running sum is bounded after every plane.
    sizes s;
    s.offsets.resize(g.planes.size());
    std::uint64_t alignment = 1;
    bool any_heads = false;
    auto place = [&](std::size_t index, std::uint64_t& sum, std::uint64_t times) {
      auto& p = g.planes[index];
      if (sum % size_of(p.type) != 0)
        bad_geometry(layer_name(g.first) + ": plane '" + p.name + "' would begin at byte " + std::to_string(sum) +
                     ", not aligned to its dtype (put wider planes first)");
      s.offsets[index] = sum;
      sum += std::uint64_t{p.dim} * size_of(p.type) * block_tokens_;
      if (sum > max_segment_bytes || sum * times > max_segment_bytes)
        bad_geometry(layer_name(g.first) + " needs more than " + std::to_string(max_segment_bytes) + " bytes a block");
    };
    for (std::size_t i = 0; i < g.planes.size(); ++i) {
      check_plane(g, i);
      if (!g.planes[i].per_head) continue;
      any_heads = true;
      alignment = std::max<std::uint64_t>(alignment, size_of(g.planes[i].type));
      place(i, s.head, g.kv_heads);
    }
    if (any_heads != (g.kv_heads > 0))
      bad_geometry(layer_name(g.first) +
                   (any_heads ? ": planes with heads but kv_heads is 0" : ": kv_heads without a plane"));
    if (s.head % alignment != 0)
      bad_geometry(layer_name(g.first) + ": a head takes " + std::to_string(s.head) +
                   " bytes, so the next one would not be aligned to its dtype");
    s.segment = s.head * g.kv_heads;
    for (std::size_t i = 0; i < g.planes.size(); ++i)
      if (!g.planes[i].per_head) place(i, s.segment, 1);

    block_bytes_ += s.segment * g.count;
    group_of_.insert(group_of_.end(), g.count, static_cast<std::uint32_t>(sizes_.size()));
    sizes_.push_back(std::move(s));
  }
}

geometry geometry::attention(std::uint32_t layers, std::uint32_t kv_heads, std::uint32_t head_size, dtype type,
                             std::uint32_t block_tokens) {
  layer_group g;
  g.count = layers;
  g.kv_heads = kv_heads;
  g.planes = {plane{"k", type, true, head_size}, plane{"v", type, true, head_size}};
  return geometry(block_tokens, {std::move(g)});
}

std::uint64_t geometry::plane_offset(std::uint32_t layer, std::uint32_t head, std::size_t plane) const {
  auto& g = group(layer);
  auto& s = sizes_[group_of_[layer]];
  return s.offsets.at(plane) + (g.planes[plane].per_head ? s.head * head : 0);
}

std::uint64_t geometry::row_bytes(std::uint32_t layer, std::size_t plane) const {
  auto& p = group(layer).planes.at(plane);
  return std::uint64_t{p.dim} * size_of(p.type);
}

block_layout geometry::layout() const {
  block_layout out;
  out.segments.reserve(layers());
  for (std::uint32_t layer = 0; layer < layers(); ++layer) out.segments.push_back(segment_bytes(layer));
  return out;
}

std::string geometry::canonical() const {
  std::string out = "tokens=" + std::to_string(block_tokens_);
  for (auto& g : groups_) {
    out +=
        ";layers=" + std::to_string(g.first) + "+" + std::to_string(g.count) + ",heads=" + std::to_string(g.kv_heads);
    if (g.window > 0) out += ",window=" + std::to_string(g.window);
    for (auto& p : g.planes)
      out += "," + p.name + ":" + std::string(to_string(p.type)) + (p.per_head ? "*" : "@") + std::to_string(p.dim);
  }
  return out;
}

}  // namespace cokv

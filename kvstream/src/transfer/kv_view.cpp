#include "cokv/kvstream/kv_view.hpp"

#include <stdexcept>

#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

// The pool's segments that a slice meets one after the other. Neighbouring ones are one run of memory, but each holds
// its own block.
class segments {
 public:
  segments(const kv_pool& pool, const slice& what, const std::vector<block_ref>& refs)
      : pool_(pool), refs_(refs), first_(what.covered().first) {}

  // To that of a layer and a place in the table; false where it is there already.
  bool go(std::uint32_t layer, std::size_t place) {
    if (layer == layer_ && place == place_) return false;
    const auto ref = refs_[place - first_];
    held = pool_.segment(layer, ref).value();
    begin = pool_.offset(layer, ref.index);
    layer_ = layer;
    place_ = place;
    return true;
  }

  buffer held;
  std::uint64_t begin = 0;

 private:
  const kv_pool& pool_;
  const std::vector<block_ref>& refs_;
  std::size_t first_;
  std::uint32_t layer_ = 0;
  std::size_t place_ = ~std::size_t{0};
};

}  // namespace

kv_view::kv_view(const kv_pool& pool, std::span<const block_lease> leases) {
  if (!pool.whole()) throw std::logic_error("kv_view: a pool has layers that are elsewhere");
  auto made = std::make_shared<state>(state{kv_layout::paged(pool.shape(), pool.blocks()), &pool, {}, {}});
  for (const auto& lease : leases) made->refs[lease.index()] = lease.ref();
  state_ = std::move(made);
}

kv_view::kv_view(kv_layout layout, std::vector<buffer> memory) {
  if (memory.size() != layout.buffers())
    throw config_error("KV memory is " + std::to_string(memory.size()) + " buffers, its layout has " +
                       std::to_string(layout.buffers()));
  for (std::uint32_t i = 0; i < layout.buffers(); ++i)
    if (memory[i].size() < layout.bytes(i))
      throw config_error("KV memory: buffer " + std::to_string(i) + " has " + std::to_string(memory[i].size()) +
                         " bytes, its layout reaches to " + std::to_string(layout.bytes(i)));
  state_ = std::make_shared<state>(state{std::move(layout), nullptr, {}, std::move(memory)});
}

kv_view::kv_view(geometry g, buffer memory, std::uint32_t blocks)
    : kv_view(kv_layout::paged(std::move(g), blocks), {std::move(memory)}) {}

kv_view kv_view::in_blocks_of(std::uint32_t tokens) const {
  kv_view out;
  out.state_ =
      std::make_shared<state>(state{layout().in_blocks_of(tokens), state_->pool, state_->refs, state_->memory});
  return out;
}

// Of the blocks that the slice covers, in its order; none in memory that is no pool's.
result<std::vector<block_ref>> kv_view::refs(const slice& what) const {
  const auto& [layout, pool, known, memory] = *state_;
  if (what.shape() != layout.shape()) return errc::invalid_argument;
  if (!what.fits(layout)) return errc::out_of_range;
  std::vector<block_ref> refs;
  if (!pool) return refs;
  const auto places = what.covered();
  refs.reserve(places.count);
  const auto each = pool->shape().block_tokens() / layout.shape().block_tokens();
  for (auto i = places.first; i < places.end(); ++i) {
    const auto ref = known.find(what.blocks()[i] / each);
    if (ref == known.end() || !pool->current(ref->second)) return errc::stale_reference;
    refs.push_back(ref->second);
  }
  return refs;
}

error_code kv_view::check(const slice& what) const {
  const auto found = refs(what);
  return found ? error_code() : found.error();
}

result<kv_runs> kv_view::runs(const slice& what) const {
  const auto found = refs(what);
  if (!found) return found.error();
  const auto& s = *state_;
  kv_runs out;
  if (!s.pool) {
    what.for_each_run(s.layout, [&](std::uint32_t, std::size_t, const kv_run& r) { out.runs.push_back(r); });
    out.memory = s.memory;
    return out;
  }
  segments at(*s.pool, what, *found);
  what.for_each_run(s.layout, [&](std::uint32_t layer, std::size_t place, kv_run r) {
    if (at.go(layer, place)) out.memory.push_back(at.held);
    r.offset -= at.begin;
    r.buffer = static_cast<std::uint32_t>(out.memory.size() - 1);
    out.runs.push_back(r);
  });
  return out;
}

result<std::vector<buffer>> kv_view::pieces(const slice& what) const {
  std::vector<buffer> pieces;
  if (const auto& s = *state_; !s.pool) {
    if (auto ec = check(what)) return ec;
    what.for_each_extent(s.layout, [&](extent e) { pieces.push_back(s.memory[e.buffer].slice(e.offset, e.size)); });
    return pieces;
  }
  const auto all = runs(what);
  if (!all) return all.error();
  pieces.reserve(all->runs.size());
  for (const auto& r : all->runs) pieces.push_back(all->memory[r.buffer].slice(r.offset, r.bytes()));  // together here
  return pieces;
}

result<std::vector<buffer>> kv_view::fragments(const slice& what) const {
  const auto found = refs(what);
  if (!found) return found.error();
  const auto& s = *state_;
  std::vector<buffer> out;
  if (!s.pool) {
    what.for_each_fragment(s.layout, [&](std::uint32_t, std::size_t, extent e) {
      out.push_back(s.memory[e.buffer].slice(e.offset, e.size));
    });
    return out;
  }
  segments at(*s.pool, what, *found);
  what.for_each_fragment(s.layout, [&](std::uint32_t layer, std::size_t place, extent e) {
    at.go(layer, place);
    out.push_back(at.held.slice(e.offset - at.begin, e.size));
  });
  return out;
}

}  // namespace cokv

// A neighbour's memory that takes its time and fails now and then, and KV of which every byte tells its layer, block and
// how often the block has changed.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <numeric>

#include "cokv/kvstream/pager.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/transfers.hpp"

namespace cokv::test {

inline geometry paged_shape(std::uint32_t layers = 6) { return geometry::attention(layers, 2, 4, dtype::f32, 4); }

inline std::byte page_truth(std::uint32_t layer, std::uint32_t block, std::uint32_t version, std::uint64_t at) {
  return byte_at(at + 1000 * version, layer * 100 + block);
}

struct neighbour_memory : detail::source_backend, detail::sink_backend {
  neighbour_memory(asio::any_io_executor e, std::size_t bytes) : ex(std::move(e)), memory(blank(bytes)) {}

  asio::any_io_executor get_executor() const override { return ex; }
  std::uint64_t size() const override { return memory.size(); }
  completion_level reach() const override { return completion_level::visible; }
  awaitable<error_code> commit() override { co_return error_code(); }

  awaitable<error_code> pass(std::uint64_t offset, std::vector<buffer> pieces, bool in, double fails) {
    const auto* on = ex.target<sim_context::executor_type>();
    auto* context = on ? &on->core() : nullptr;
    const auto wait = context ? duration(context->below(100'000)) : duration(0);
    const bool fail = context && context->chance(fails);
    auto waited = co_await clock::of(ex).async_wait_for(wait, as_result);
    if (!waited) co_return waited.error();
    if (fail) co_return errc::unavailable;
    for (auto& piece : pieces) {
      auto there = memory.slice(offset, piece.size());
      in ? std::ranges::copy(there.bytes(), piece.bytes().begin())
         : std::ranges::copy(piece.bytes(), there.bytes().begin());
      offset += piece.size();
    }
    co_return error_code();
  }
  awaitable<error_code> get(std::uint64_t offset, std::vector<buffer> pieces, event) override {
    return pass(offset, std::move(pieces), true, get_fails);
  }
  awaitable<error_code> put(std::uint64_t offset, std::vector<buffer> pieces, event, completion_level) override {
    return pass(offset, std::move(pieces), false, put_fails);
  }

  asio::any_io_executor ex;
  buffer memory;
  double get_fails = 0, put_fails = 0;
};

// A pager, and what its layers are to be.
struct pager_rig {
  pager_rig(asio::any_io_executor ex, std::vector<std::uint32_t> lent, std::uint32_t blocks, source from, sink to,
            buffer there)
      : options{.lent = std::move(lent), .blocks = blocks, .chunk = 300, .in_flight = 3},
        memory(std::move(there)),
        pages(shape, std::move(from), std::move(to), {blank(room()), blank(room())}, options),
        compute(any_device(ex).make_stream().value()) {
    for (auto l : options.lent)
      for (std::uint32_t b = 0; b < blocks; ++b) {
        versions[{l, b}] = 0;
        fill(block(memory.slice(pages.offset(l), bytes(l)), l, b), l, b);
      }
  }

  std::size_t room() const { return pager::landing_bytes(shape, options); }
  std::uint64_t bytes(std::uint32_t layer) const { return shape.segment_bytes(layer) * options.blocks; }
  buffer block(const buffer& of, std::uint32_t layer, std::uint32_t b) const {
    return of.slice(shape.segment_bytes(layer) * b, shape.segment_bytes(layer));
  }
  void fill(const buffer& b, std::uint32_t layer, std::uint32_t index) {
    std::uint64_t at = 0;
    for (auto& x : b.bytes()) x = page_truth(layer, index, versions[{layer, index}], at++);
  }
  std::size_t wrong(const buffer& of, std::uint32_t layer, const std::vector<std::uint32_t>& blocks) {
    std::size_t n = 0;
    for (auto b : blocks) {
      std::uint64_t at = 0;
      const auto seen = block(of, layer, b);
      for (auto x : seen.bytes()) n += x != page_truth(layer, b, versions[{layer, b}], at++);
    }
    return n;
  }
  // A layer of a step: what came is right, and some of its blocks change.
  void step(std::uint32_t layer, const buffer& kv, const std::vector<std::uint32_t>& used,
            std::vector<std::uint32_t> changes, std::shared_ptr<const void> keep = {}) {
    CHECK(wrong(kv, layer, used) == 0);
    for (auto b : changes) ++versions[{layer, b}];
    // It may run when this rig is gone.
    auto kernel = [kv, changes, layer, now = versions, size = shape.segment_bytes(layer)] {
      for (auto b : changes)
        for (std::uint64_t at = 0; at < size; ++at)
          kv.bytes()[size * b + at] = page_truth(layer, b, now.at({layer, b}), at);
    };
    (void)compute.launch("layer", kernel);
    pages.done(layer, compute.record(), std::move(changes), std::move(keep));
  }
  std::size_t wrong_there() {
    std::vector<std::uint32_t> all(options.blocks);
    std::iota(all.begin(), all.end(), 0);
    std::size_t n = 0;
    for (auto l : options.lent) n += wrong(memory.slice(pages.offset(l), bytes(l)), l, all);
    return n;
  }

  geometry shape = paged_shape();
  pager_options options;
  buffer memory;
  pager pages;
  stream compute;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> versions;
};

}  // namespace cokv::test

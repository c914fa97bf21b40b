// Blocks that lie in memory which their writer shares, for tests of writes by reference.
#pragma once

#include "cokv/kvstream/block_places.hpp"
#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "lender.hpp"

namespace cokv::test {

// The blocks' segments in one piece of memory, where their writer has them.
class shared_blocks {
 public:
  shared_blocks(std::uint32_t first, std::uint32_t count)
      : count_(count), memory_(allocate_shared(contract_layout().bytes() * count).value()) {
    std::size_t at = 0;
    for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer)
      for (std::uint32_t i = 0; i < count; ++i) {
        places_.push_back(at);
        for (std::size_t n = 0; n < contract_layout().segments[layer]; ++n)
          memory_.data()[at++] = contract_byte(first + i, layer, n);
      }
  }

  const buffer& memory() const { return memory_; }
  std::shared_ptr<const int> file() const { return export_shared(memory_)->file; }
  std::vector<buffer> layer(std::uint32_t l) const {
    std::vector<buffer> out;
    for (std::uint32_t i = 0; i < count_; ++i) out.push_back(segment(l, i));
    return out;
  }
  buffer segment(std::uint32_t l, std::uint32_t i) const {
    return memory_.slice(places_[l * count_ + i], contract_layout().segments[l]);
  }
  block_places where(std::uint32_t l, std::uint64_t number = 0, std::uint64_t generation = 1) const {
    block_places out{.memory = number, .generation = generation, .layers = 1, .lives = {}, .places = {}};
    for (std::uint32_t i = 0; i < count_; ++i) {
      out.lives.push_back(0);
      out.places.push_back({places_[l * count_ + i], digest_of(segment(l, i).bytes())});
    }
    return out;
  }

 private:
  std::uint32_t count_;
  buffer memory_;
  std::vector<std::size_t> places_;
};

inline awaitable<error_code> write_shared(cokv::store& s, const shared_blocks& blocks, std::uint32_t first,
                                          std::uint32_t count, write_options how = {}) {
  auto writer = co_await s.async_open_write(cache_ns, contract_layout(), contract_keys(first, count), how, as_result);
  if (!writer) co_return writer.error();
  for (std::uint32_t l = 0; l < contract_layout().layers(); ++l)
    if (auto done = co_await (*writer)->async_write(l, blocks.layer(l), as_result); !done) co_return done.error();
  auto done = co_await (*writer)->async_commit(as_result);
  co_return done ? error_code() : done.error();
}

}  // namespace cokv::test

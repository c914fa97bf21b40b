// A swapper with its pools, and kernels that know what KV is to be: each checks all that is there, byte for byte, and
// adds the next token.
#pragma once

#include <doctest/doctest.h>

#include <map>

#include "cokv/kvstream/swapper.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/transfers.hpp"

namespace cokv::test {

inline std::byte swap_truth(std::uint64_t microbatch, std::uint32_t sequence, std::uint32_t layer, std::uint32_t token,
                            std::uint64_t at) {
  std::uint64_t x = microbatch;
  for (std::uint64_t part : {std::uint64_t{sequence}, std::uint64_t{layer}, std::uint64_t{token}, at})
    x = (x ^ part) * 0x9e3779b97f4a7c15u + (x >> 29);
  return static_cast<std::byte>(x >> 56);
}

inline geometry swap_shape() { return geometry::attention(2, 2, 4, dtype::f32, 4); }

class swap_rig {
 public:
  swap_rig(device d, swapper_options o, std::uint32_t microbatches)
      : options(o),
        gpu(d),
        on_device(swap_shape(), o.slots * o.sequences * o.blocks,
                  gpu.allocate(pool_bytes(swap_shape(), o.slots * o.sequences * o.blocks)).value()),
        on_host(swap_shape(), microbatches * o.sequences * o.blocks),
        swap(gpu, on_device, on_host, o),
        compute(gpu.make_stream().value()) {
    std::ranges::fill(on_host.memory().bytes(), std::byte{0xdd});
  }

  static std::uint64_t token_bytes(std::uint32_t sequences) { return sequences * swap_shape().block_bytes() / 4; }

  void add(std::uint64_t m, std::uint32_t tokens) {
    CHECK(!swap.add(m, tokens));
    held[m] = tokens;
    each(swap.host(m), {0, tokens},
         [&](auto s, auto l, auto t, auto i, std::byte& b) { b = swap_truth(m, s, l, t, i); });
  }
  void remove(std::uint64_t m) {
    swap.remove(m);
    held.erase(m);
  }

  awaitable<result<swap_turn>> turn() {
    // Before, not after: a turn is given in the belief that what failed on this stream fails what comes on it too.
    if (compute.status()) compute = gpu.make_stream().value();
    co_return co_await swap.async_turn(as_result);
  }

  // A step of the turn's microbatch, on the compute stream.
  event step(const swap_turn& turn, std::uint32_t new_tokens, cost price = {}) {
    CHECK(turn.tokens == held.at(turn.microbatch));
    (void)compute.wait(turn.arrived);
    struct byte {
      std::byte* at;
      std::byte is;
    };
    std::vector<byte> there, fresh;
    const auto m = turn.microbatch;
    const auto& place = swap.slot(turn.slot);
    for (auto [bytes, tokens] :
         {std::pair(&there, index_range{0, turn.tokens}), std::pair(&fresh, index_range{turn.tokens, new_tokens})})
      each(place, tokens,
           [&](auto s, auto l, auto t, auto i, std::byte& b) { bytes->push_back({&b, swap_truth(m, s, l, t, i)}); });
    // It may run when this rig is gone.
    auto kernel = [bad = bad_, memory = on_device.memory(), there, fresh] {
      for (auto& b : there) *bad += *b.at != b.is;
      for (auto& b : fresh) *b.at = b.is;
    };
    (void)compute.launch("step", kernel, price);
    held[turn.microbatch] += new_tokens;
    return compute.record();
  }
  // Bytes in host memory that are not what was written out.
  std::size_t wrong_on_host(std::uint64_t m, std::uint32_t tokens) {
    std::size_t n = 0;
    each(swap.host(m), {0, tokens},
         [&](auto s, auto l, auto t, auto i, std::byte& b) { n += b != swap_truth(m, s, l, t, i); });
    return n;
  }

  swapper_options options;
  device gpu;
  kv_pool on_device, on_host;
  swapper swap;
  stream compute;
  std::map<std::uint64_t, std::uint32_t> held;  // tokens
  std::size_t wrong() const { return *bad_; }   // bytes that a step found

 private:
  std::shared_ptr<std::size_t> bad_ = std::make_shared<std::size_t>(0);

  template <class F>
  static void each(const swap_place& place, index_range tokens, F f) {
    for (std::uint32_t s = 0; s < place.tables.size(); ++s)
      for (std::uint32_t l = 0; l < 2; ++l)
        for (auto t = tokens.first; t < tokens.end(); ++t) {
          slice what(swap_shape(), {l, 1}, place.tables[s]);
          what.tokens({t, 1});
          std::uint64_t i = 0;
          const auto pieces = place.view.pieces(what).value();
          for (const auto& p : pieces)
            for (auto& b : p.bytes()) f(s, l, t, i++, b);
        }
  }
};

}  // namespace cokv::test

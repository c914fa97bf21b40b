// Some layers of a worker's KV live in a neighbour's memory, and come back one lent layer ahead of computing, into two
// landing buffers by turns; what a step adds to them is written back. How many may be lent so that nobody waits, says
// lending_bound.hpp; which ones, spread_layers().
//
//     auto lent = spread_layers(g.layers(), bound.layers(g.layers()));
//     cokv::pager pages(g, link.from(theirs), link.to(theirs), {landing_a, landing_b}, {.lent = lent, .blocks = 512});
//     for (;;) {
//       pages.use(blocks);                                    // those with KV of earlier steps
//       for (std::uint32_t l = 0; l < g.layers(); ++l) {
//         buffer kv = pages.lent(l) ? co_await pages.async_layer(l) : own_layer(l);
//         event computed = attend(l, kv, batch);
//         if (pages.lent(l)) pages.done(l, computed, changed);   // blocks that got a token
//       }
//     }
//
// A layer is `blocks` segments of its geometry, one behind the other, here and at the neighbour, whose memory has the
// lent layers one behind the other: lent_bytes() in all. Blocks travel whole, back too: a token's rows are scattered
// over its block, and a block is little beside the layer that every step brings.
//
// |              | async_layer                                                                                  |
// |--------------|----------------------------------------------------------------------------------------------|
// | cancellation | every kind ends the wait; what comes goes on coming                                          |
// | memory       | landing buffers are held until the last transfer is done, also when the pager is destroyed   |
// | completes    | the layer's KV of all blocks in use is in the buffer, until its done()                       |
// | errors       | of the fetch of this layer, which is then tried again; of a write back: of this layer's,     |
// |              | once, whose KV is still here and given next time; of both buffers' layers, when neither can  |
// |              | be written back, tried once more, to make room                                               |
//
// KV that was not computed here, a prompt's that came from elsewhere say, goes there by async_write, blocks that no step uses
// meanwhile; what came of them before is not used again, whatever becomes of it. Blocks that steps changed are not to be
// written before `keep` of done() is dropped. Its errors are the link's, its cancellation ends it when nothing is on its way.
//
// A step whose event fails writes nothing back. async_settled: when everything that was handed to done() is at the
// neighbour; it gives the error of what is not, and ends with every kind of cancellation. Layers may be asked for in
// any order; those that follow each other as they are lent come ahead. One layer at a time is waited for. Not
// thread-safe; misuse throws std::invalid_argument.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/transfer.hpp"

namespace cokv {

struct pager_options {
  std::vector<std::uint32_t> lent;               // layers, ascending
  std::uint32_t blocks = 1;                      // that a layer has room for
  std::uint64_t chunk = std::uint64_t{1} << 20;  // what is fetched at once: others use the link in between
  std::size_t in_flight = 4;                     // chunks on their way, or as many bytes of smaller pieces
  // What a step changed could not be written back, twice, and stays in its landing: until its layer is asked for again.
  std::function<void(error_code)> on_stuck = {};
};

// `count` of so many layers, as far from each other as can be. With two landing buffers only two layers can be ahead:
// next to each other, each would find the one before still on its way; apart, it comes while those between compute.
std::vector<std::uint32_t> spread_layers(std::uint32_t layers, std::uint32_t count);

namespace detail {
struct pager_state;
using page_handler = asio::any_completion_handler<void(error_code, buffer)>;
}  // namespace detail

class pager {
 public:
  // Throws config_error for layers that are not there, twice or out of order, for buffers smaller than landing_bytes()
  // or a neighbour with less than lent_bytes().
  pager(geometry g, source from, sink to, std::array<buffer, 2> landing, pager_options options);
  pager(pager&&) noexcept = default;
  pager& operator=(pager&&) = delete;
  ~pager();

  static std::uint64_t lent_bytes(const geometry& g, const pager_options& o);     // the neighbour's memory
  static std::uint64_t landing_bytes(const geometry& g, const pager_options& o);  // each of the two

  bool lent(std::uint32_t layer) const;
  // Where a lent layer begins in the neighbour's memory.
  std::uint64_t offset(std::uint32_t layer) const;
  // Blocks to be brought from now on.
  void use(std::vector<std::uint32_t> blocks);

  // void(error_code, buffer)
  template <class Token = asio::deferred_t>
  auto async_layer(std::uint32_t layer, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, buffer)>(
        std::forward<Token>(token), get_executor(),
        [s = state_, layer](detail::page_handler h) { page(s, layer, std::move(h)); });
  }
  // The layer was computed with when the event is ready, and these blocks of it have changed. `keep`: dropped when they are
  // at the neighbour, or nowhere.
  void done(std::uint32_t layer, event computed, std::vector<std::uint32_t> changed,
            std::shared_ptr<const void> keep = {});

  // void(error_code): blocks of a lent layer as `from` has them, laid out as a landing buffer, are at the neighbour.
  template <class Token = asio::deferred_t>
  auto async_write(std::uint32_t layer, buffer from, std::vector<std::uint32_t> blocks, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(std::forward<Token>(token), get_executor(),
                                                     [s = state_, layer, from, blocks = std::move(blocks)](
                                                         asio::any_completion_handler<void(error_code)> h) mutable {
                                                       write(s, layer, from, std::move(blocks), std::move(h));
                                                     });
  }
  // void(error_code)
  template <class Token = asio::deferred_t>
  auto async_settled(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [s = state_](asio::any_completion_handler<void(error_code)> h) { settled(s, std::move(h)); });
  }

  std::uint64_t bytes_in() const noexcept;  // moved so far
  std::uint64_t bytes_out() const noexcept;
  asio::any_io_executor get_executor() const;

 private:
  static void page(std::shared_ptr<detail::pager_state> s, std::uint32_t layer, detail::page_handler h);
  static void write(std::shared_ptr<detail::pager_state> s, std::uint32_t layer, buffer from,
                    std::vector<std::uint32_t> blocks, asio::any_completion_handler<void(error_code)> h);
  static void settled(std::shared_ptr<detail::pager_state> s, asio::any_completion_handler<void(error_code)> h);
  std::shared_ptr<detail::pager_state> state_;
};

}  // namespace cokv

// A store's blocks as a sink or a source: the segments of all keys lie one behind the other, layer by layer, so a
// layer of a sequence is one range. The store counts in whole layers: a transfer covers one, cut where segments meet.
//
//     sink to = blocks_to(std::move(writer), g.layout(), keys.size());
//     co_await async_gather(view, slice(g, {layer, 1}, table), to, layer_offset(g.layout(), keys.size(), layer), ...);
//     co_await to.async_commit();                                        // now the blocks are visible
//
// A put reaches local: the store has taken the bytes. Blocks become visible together, by async_commit. A get fails with
// errc::not_found when a block of the layer did not arrive or verify. Transfers of one window are done one at a time.
#pragma once

#include <memory>

#include "cokv/kvstream/store.hpp"
#include "cokv/kvstream/transfer.hpp"

namespace cokv {

sink blocks_to(std::unique_ptr<block_writer> writer, block_layout layout, std::size_t blocks);
source blocks_from(std::unique_ptr<block_reader> reader, block_layout layout, std::size_t blocks);

// Where a layer's segments begin.
std::uint64_t layer_offset(const block_layout& layout, std::size_t blocks, std::uint32_t layer);

}  // namespace cokv

// Moving a slice of KV: layers x blocks or tokens x heads. async_gather collects its extents into one range of a sink,
// async_scatter spreads a range of a source over them: packed through staging buffers, where copy and digest are one
// pass, or piece by piece where the other side takes pieces as well.
//
// A digest is XXH3-64, or its tree form (digest.hpp), which a CUDA device makes itself while it packs; of XXH3-64 the
// host makes a pass of its own over what a device has packed. Both sides take the same one, whatever packs there.
//
//     packing through{staging, pack_stream};
//     transferred sent = co_await async_gather(view, slice(g, {0, 4}, table), to, 0, {.through = &through});
//     co_await async_scatter(from, 0, view, slice(g, {0, 4}, other_table),
//                            {.through = &through, .digest = sent.digest});
//
// |              | async_gather, async_scatter                                                               |
// |--------------|-------------------------------------------------------------------------------------------|
// | cancellation | piece by piece: as async_flush. Packed: every kind drains what has begun, no more begins  |
// | memory       | the pool's blocks and staging are referenced until their last reader or writer is done    |
// | completes    | as async_flush; transferred.digest is of all bytes in slice order, where one was made     |
// | errors       | as async_flush; stale_reference, out_of_range, invalid_argument (kv_view); a scatter's    |
// |              | also for a block that is freed meanwhile (stale_reference) or covered twice               |
// |              | (invalid_argument); wrong_device: packed, and neither the host nor the packing stream's   |
// |              | device can reach the memory;                                                              |
// |              | digest_mismatch: what the slice covers is undefined                                       |
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/kv_view.hpp"
#include "cokv/kvstream/transfer.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/staging_pool.hpp"
#include "cokv/runtime/stream.hpp"

namespace cokv {

namespace detail {

class pack_kernels;
std::shared_ptr<pack_kernels> make_pack_kernels();

}  // namespace detail

// How a CUDA device packs its own memory: by one batch of copies for each staging buffer, an extent each, or by a kernel
// that reads and writes staging over PCIe, which takes a few of its processors.
enum class packing_way : std::uint8_t {
  automatic,  // a kernel where it makes the digest, or where extents are small; else copies
  copies,
  kernel,  // where it can: the stream is a CUDA device's, the memory its own, and a staging buffer has room for it
};

// Staging and the stream that packs: by the host's threads where the host reaches the memory (at once, up to 64 KiB that
// may begin), else by the device's copies
// or kernel. Staging is host memory. Both outlive the transfers. Gathers
// through one of them pack in the order in which they began, so that a layer that is not computed yet never holds up
// one that is. A kernel's table has its place in the staging buffer too, behind the bytes: a buffer takes a little less
// of them, a multiple of 4 KiB.
struct packing {
  staging_pool& staging;
  stream kernels;
  std::shared_ptr<semaphore> turn = std::make_shared<semaphore>(staging.get_executor(), 1);
  packing_way way = packing_way::automatic;
  std::shared_ptr<detail::pack_kernels> device = detail::make_pack_kernels();  // what is known of the stream's
};

struct gather_options {
  const packing* through = nullptr;  // none: piece by piece
  event begin = {};
  completion_level level = completion_level::visible;
  digest_algorithm digest = digest_algorithm::xxh3_64;  // made while packing; a link makes its own
};

struct scatter_options {
  const packing* through = nullptr;
  event begin = {};
  std::optional<std::uint64_t> digest = {};  // what the bytes must have; needs `through` and an algorithm
  digest_algorithm algorithm = digest_algorithm::xxh3_64;
};

// What a gather packed, put in its places at once and on the caller's thread: for little of it, or by pieces with turns of the
// context between. kv_view's errors; errc::invalid_argument: not as many bytes as the slice has, or a block that is covered
// twice; errc::wrong_device: the host can't reach the memory.
error_code unpack_here(const kv_view& to, const slice& what, std::span<const std::byte> packed);

namespace detail {

awaitable<result<transferred>> gather(kv_view from, slice what, sink to, std::uint64_t offset, gather_options options);
awaitable<result<transferred>> scatter(source from, std::uint64_t offset, kv_view to, slice what,
                                       scatter_options options);

}  // namespace detail

// void(error_code, transferred)
template <class Token = asio::deferred_t>
auto async_gather(kv_view from, slice what, sink to, std::uint64_t offset, gather_options options = {},
                  Token&& token = Token()) {
  auto ex = to.get_executor();
  return detail::initiate_erased<void(error_code, transferred)>(
      std::forward<Token>(token), ex, [ex, from, what, to, offset, options](detail::transfer_handler h) {
        detail::start_transfer(ex, detail::gather(from, what, to, offset, options), std::move(h));
      });
}

// void(error_code, transferred)
template <class Token = asio::deferred_t>
auto async_scatter(source from, std::uint64_t offset, kv_view to, slice what, scatter_options options = {},
                   Token&& token = Token()) {
  auto ex = from.get_executor();
  return detail::initiate_erased<void(error_code, transferred)>(
      std::forward<Token>(token), ex, [ex, from, offset, to, what, options](detail::transfer_handler h) {
        detail::start_transfer(ex, detail::scatter(from, offset, to, what, options), std::move(h));
      });
}

}  // namespace cokv

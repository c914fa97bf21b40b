// KV of one element type on its way to a worker that keeps another (convert.hpp).
//
//     conversion as{.from = dtype::f32, .to = dtype::bf16, .through = &packing};
//     sink theirs = converted(link.to(landing), as);                   // offsets and sizes count in our type
//     co_await async_gather(view, what, theirs, 0);
//
// |              | a put into converted()                                                                    |
// |--------------|-------------------------------------------------------------------------------------------|
// | cancellation | every kind drains what has begun, no more begins                                          |
// | memory       | pieces are referenced until they are converted, staging until it is put                   |
// | completes    | as the put of what was converted                                                          |
// | errors       | errc::out_of_range: an element that has no value in the other type; errc::invalid_argument: |
// |              | half an element; errc::wrong_device: neither the host nor the packing stream's device       |
// |              | reaches it; the event's, the stream's and the put's own                                   |
#pragma once

#include <cstdint>

#include "cokv/kvstream/convert.hpp"
#include "cokv/kvstream/gather.hpp"
#include "cokv/kvstream/transfer.hpp"

namespace cokv {

struct conversion {
  dtype from = dtype::f32, to = dtype::f32;
  const packing* through = nullptr;  // outlives the sinks; its buffers bound what is on its way

  std::uint64_t converted_bytes(std::uint64_t bytes) const noexcept { return bytes / size_of(from) * size_of(to); }
};

// A sink of elements of how.from into one of how.to.
sink converted(sink to, conversion how);

}  // namespace cokv

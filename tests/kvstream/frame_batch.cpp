#include "cokv/kvstream/frame_batch.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "cokv/kvstream/frame_stream.hpp"

using namespace cokv;

namespace {

void append(std::vector<std::byte>& to, const void* bytes, std::size_t n) {
  const auto* from = static_cast<const std::byte*>(bytes);
  to.insert(to.end(), from, from + n);
}

}  // namespace

TEST_CASE("a batch of frames is the frames, one after the other, in few buffers") {
  for (std::size_t count = 0; count <= frame_batch::limit; ++count) {
    CAPTURE(count);
    frame_batch batch;
    for (int again = 0; again < 2; ++again) {
      std::vector<std::byte> expected;
      const std::vector<std::byte> before(again ? 7 : 0, std::byte{1}), after(again ? 0 : 5, std::byte{2});
      append(expected, before.data(), before.size());
      std::vector<buffer> payloads;
      CHECK(batch.empty());
      for (std::size_t i = 0; i < count; ++i) {
        CHECK_FALSE(batch.full());
        payloads.push_back(buffer::host(16 + i));
        std::memset(payloads.back().data(), static_cast<int>(i + 3), payloads.back().size());
        frame_header h{.type = frame_type::segment};
        h.block = static_cast<std::uint32_t>(i);
        h.length = payloads.back().size();
        const auto head = encode(h);
        const auto trailer = seal(head, payloads.back().bytes());
        append(expected, head.data(), head.size());
        append(expected, payloads.back().data(), payloads.back().size());
        append(expected, trailer.data(), trailer.size());
        batch.add(head, payloads.back(), trailer);
      }
      append(expected, after.data(), after.size());
      CHECK(batch.size() == count);
      CHECK(batch.full() == (count == frame_batch::limit));
      const auto buffers = batch.buffers(before, after);
      CHECK(buffers.size() <= 2 * count + 1 + 1);
      CHECK(buffers.size() < byte_stream::const_buffers::limit);
      std::vector<std::byte> got;
      for (const auto& b : buffers) append(got, b.data(), b.size());
      CHECK((got == expected));
      batch.clear();
    }
  }
}

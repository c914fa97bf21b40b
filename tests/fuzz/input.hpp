// An input of the frame, stream, link, disk and places targets: four bytes that say how the rest is read, then bytes as on a wire.
#pragma once

#include <algorithm>

#include "cokv/runtime/detail/splitmix.hpp"
#include "fuzz/harness.hpp"

namespace cokv::fuzz {

// Random bytes never carry a right digest: what is mended before it is read, else a fuzzer sees one refusal for ever.
// Without a bit, the bytes stay as they are.
enum mending : std::uint8_t {
  digests = 1,   // of headers
  trailers = 2,  // of payloads
  fields = 4,    // magic, version, type; lengths that the bytes are there for
  order = 8,     // streams: names, sequence, keys and lengths as the begin frame demands them
  turn = 16,     // streams: segments in their turn
};

struct input {
  std::uint8_t mend = 0;
  std::uint8_t how = 0;    // limits and variants, by target
  std::uint64_t seed = 0;  // where the bytes are cut, and where payloads go
  bytes wire;

  explicit input(bytes in) {
    if (in.size() < 4) return;
    mend = std::to_integer<std::uint8_t>(in[0]);
    how = std::to_integer<std::uint8_t>(in[1]);
    seed = std::to_integer<std::uint64_t>(in[2]) << 8 | std::to_integer<std::uint64_t>(in[3]);
    wire = in.subspan(4);
  }

  // One choice of many, the same whenever it is asked for.
  std::uint64_t choice(std::uint64_t which, std::uint64_t bound) const {
    return detail::splitmix(seed * 0x10001 + which).below(bound);
  }
};

// The same bytes read in three ways, which must make no difference.
enum class way : std::uint8_t {
  whole,   // as much as the parser takes
  pieces,  // a few bytes at a time
  direct,  // payloads right into their place
};

class cutter {
 public:
  cutter(const input& in, way how) : random_(in.seed + static_cast<std::uint64_t>(how)), how_(how) {}
  std::size_t operator()(std::size_t left) {
    if (how_ == way::whole || left == 0) return left;
    const auto most = random_.below(4) == 0 ? 300 : 24;
    return std::min<std::size_t>(left, 1 + random_.below(most));
  }

 private:
  detail::splitmix random_;
  way how_;
};

}  // namespace cokv::fuzz

// block_places: as the answer to a read, and as what a write by reference says one after the other. What is accepted lies
// in the memory that it is of, is no more than was asked for, and is written as it was read.
#include "cokv/kvstream/block_places.hpp"

#include <algorithm>
#include <cstring>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"
#include "fuzz/input.hpp"

namespace cokv::fuzz {
namespace {

using namespace detail;

constexpr std::uint64_t generation = 42;
constexpr std::size_t head = block_places::head_bytes, digest = 8;

stream_begin asked_of(const input& in) {
  stream_begin out;
  out.generation = generation;
  for (std::uint32_t layer = 0; layer <= (in.how & 3u); ++layer) out.layout.segments.push_back(24 >> layer);
  out.keys.resize(1 + (in.how >> 2 & 7));
  return out;
}

std::uint64_t memory_of(const input& in) {
  const std::uint64_t sizes[] = {0, 23, 24, 100, 4096, std::uint64_t{1} << 63, ~std::uint64_t{0}};
  return sizes[in.seed % std::size(sizes)];
}

// Messages as they should be begun and ended, so that what is in them is reached. `layers` of 0: those of a write.
std::vector<std::byte> mended(const input& in, std::uint32_t layers) {
  std::vector<std::byte> out(in.wire.begin(), in.wire.end());
  if ((in.mend & (digests | fields)) == 0) return out;
  for (std::size_t at = 0; at + head + digest <= out.size();) {
    auto* m = out.data() + at;
    const auto left = out.size() - at;
    const auto each = 8 + std::size_t{layers == 0 ? 1 : layers} * 16;
    const auto fit = (left - head - digest) / each;
    auto blocks = std::min<std::size_t>(get<std::uint32_t>(m + 28) % 9, fit);
    if ((in.mend & fields) != 0) {
      std::memcpy(m, "ckvP", 4);
      put(m + 4, std::uint32_t{1});
      put(m + 16, generation);
      put(m + 24, layers != 0 ? layers : blocks == 0 ? 0 : 1);
      put(m + 28, static_cast<std::uint32_t>(blocks));
    }
    if ((in.mend & order) != 0)  // places that are there, some at the very end
      for (std::size_t i = 0; i < blocks * std::max<std::uint32_t>(layers, 1); ++i) {
        auto* p = m + head + blocks * 8 + i * 16;
        put(p, get<std::uint64_t>(p) % (std::min<std::uint64_t>(memory_of(in), 1 << 20) + 1));
      }
    const auto bytes =
        layers != 0 && (in.mend & fields) == 0 ? left : head + blocks * each + digest;  // an answer is all there is
    put(m + bytes - digest, digest_of(std::span<const std::byte>(m, bytes - digest)));
    if (layers != 0) out.resize(at + bytes);
    at += bytes;
  }
  return out;
}

void check(bytes said, const block_places& got, const stream_begin& asked, std::uint64_t memory) {
  require(got.generation == asked.generation && got.layers == asked.layout.layers(), "it is what was asked for");
  require(got.blocks() <= asked.keys.size() && got.places.size() == got.blocks() * got.layers,
          "no more blocks than were asked for, each with its places");
  std::uint64_t farthest = 0;
  for (std::uint32_t layer = 0; layer < got.layers; ++layer)
    for (std::size_t i = 0; i < got.blocks(); ++i) {
      const auto bytes = asked.layout.segments[layer], offset = got.at(layer, i).offset;
      require(bytes <= memory && offset <= memory - bytes, "a place lies in the memory");
      farthest = std::max(farthest, offset + bytes);
    }
  const auto again = got.encode();
  require(std::ranges::equal(again, said), "places are written as they were read");
  require(block_places::memory_of(said).value() == got.memory, "whose memory it is, is told before");
  require(block_places::announced_bytes(said, got.layers, got.blocks()).value() == said.size(),
          "its length is foretold");
  if (farthest != 0)
    require(!block_places::decode(said, asked, farthest - 1), "in a smaller memory a place lies outside");
  require(!block_places::decode(said.first(said.size() - 1), asked, memory), "what is cut is refused");
}

void read_answer(const input& in) {
  const auto asked = asked_of(in);
  const auto memory = memory_of(in);
  const auto wire = mended(in, asked.layout.layers());
  const auto announced = block_places::announced_bytes(wire, asked.layout.layers(), asked.keys.size());
  if (announced)
    require(*announced <= block_places::encoded_bytes(asked.layout.layers(), asked.keys.size()),
            "what is announced has its bound");
  const auto got = block_places::decode(wire, asked, memory);
  if (!got) return reach(got.error() == errc::digest_mismatch ? "places: damaged answer" : "places: no answer");
  reach(got->blocks() == 0 ? "places: empty answer" : "places: answer");
  check(wire, *got, asked, memory);
}

// As a server reads a write's body: each message by its length, until every block of every layer was told of.
void read_written(const input& in) {
  const auto asked = asked_of(in);
  const auto memory = memory_of(in);
  const auto wire = mended(in, 0);
  bytes rest = wire;
  auto one = asked;
  one.layout.segments.resize(1);
  std::vector<std::byte> again;
  const auto refused = [](error_code ec) {
    reach(ec == errc::digest_mismatch ? "places: damaged write" : "places: refused write");
  };
  for (const auto segment : asked.layout.segments) {
    one.layout.segments[0] = segment;
    for (std::size_t told = 0; told < asked.keys.size();) {
      if (rest.size() < head) return refused(errc::protocol);
      const auto size = block_places::announced_bytes(rest, 1, asked.keys.size() - told);
      if (!size) return refused(size.error());
      require(*size <= block_places::encoded_bytes(1, asked.keys.size()), "what is announced has its bound");
      if (rest.size() < *size) return refused(errc::protocol);
      const auto said = rest.first(*size);
      const auto number = block_places::memory_of(said);
      if (!number) return refused(number.error());
      const auto where = block_places::decode(said, one, memory);
      if (!where) return refused(where.error());
      if (where->blocks() == 0) return refused(errc::protocol);
      check(said, *where, one, memory);
      reach("places: some of a write");
      told += where->blocks();
      require(told <= asked.keys.size(), "no block is told of twice");
      append(again, where->encode());
      rest = rest.subspan(*size);
    }
  }
  one.layout.segments.clear();
  const auto end = block_places::encoded_bytes(0, 0);
  const auto last = rest.size() < end ? result<block_places>(errc::protocol)
                                      : block_places::decode(rest.first(static_cast<std::size_t>(end)), one, 0);
  if (!last) return refused(last.error());
  append(again, last->encode());
  require(std::ranges::equal(again, bytes(wire).first(again.size())), "a write is written as it was read");
  reach("places: written");
}

}  // namespace

void places(bytes raw) {
  const input in(raw);
  (in.how & 0x80) != 0 ? read_written(in) : read_answer(in);
}

}  // namespace cokv::fuzz

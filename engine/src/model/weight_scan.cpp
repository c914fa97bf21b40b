#include "model/weight_scan.hpp"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>

#include "kernel/cpu/convert.hpp"
#include "kernel/cpu/parallel.hpp"

namespace cokv {
namespace {

constexpr std::size_t piece_bytes = 16 << 20,
                      cached_bytes = 256 << 10;  // the second look finds these in the cache

struct piece {
  const tensor_view* from;
  std::size_t begin, size;
  scanned_tensor::digest digest{};
  std::uint64_t first_not_finite = scanned_tensor::none;

  void scan() {
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
    if (!hash) throw std::bad_alloc();
    XXH3_128bits_reset(hash.get());
    const auto element = size_of(from->type);
    const auto* data = from->bytes.data() + begin;
    for (std::size_t at = 0; at < size;) {
      const auto n = std::min(cached_bytes, size - at);
      XXH3_128bits_update(hash.get(), data + at, n);
      if (first_not_finite == scanned_tensor::none && !kernel::all_finite(data + at, from->type, n / element)) {
        auto i = (begin + at) / element;
        while (kernel::all_finite(from->bytes.data() + i * element, from->type, 1)) ++i;
        first_not_finite = i;
      }
      at += n;
    }
    const auto d = XXH3_128bits_digest(hash.get());
    digest = {d.low64, d.high64};
  }
};

}  // namespace

some_tensors all_tensors(const weights& of) {
  some_tensors out;
  for (auto& [name, t] : of.tensors()) out.emplace_hint(out.end(), name, &t);
  return out;
}

weight_scan scan(const some_tensors& which, const load_progress& progress) {
  std::vector<piece> pieces;
  std::uint64_t bytes = 0;
  for (auto& [name, t] : which) {
    for (std::size_t at = 0; at < t->bytes.size(); at += piece_bytes)
      pieces.push_back({t, at, std::min(piece_bytes, t->bytes.size() - at)});
    bytes += t->bytes.size();
  }
  std::mutex one_at_a_time;
  std::uint64_t read = 0;
  kernel::parallel(pieces.size(), 1e6, [&](std::size_t i) {
    pieces[i].scan();
    if (!progress) return;
    std::scoped_lock hold(one_at_a_time);
    progress(read += pieces[i].size, bytes);
  });
  weight_scan out;
  auto next = pieces.begin();
  for (auto& [name, t] : which) {
    auto& s = out.emplace_hint(out.end(), name, scanned_tensor{})->second;
    for (; next != pieces.end() && next->from == t; ++next) {
      s.digests.push_back(next->digest);
      s.first_not_finite = std::min(s.first_not_finite, next->first_not_finite);
    }
  }
  return out;
}

}  // namespace cokv

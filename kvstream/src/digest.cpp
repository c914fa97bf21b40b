#include "cokv/kvstream/digest.hpp"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#if defined(COKV_XXH_DISPATCH)
#include <xxh_x86dispatch.h>  // the library's own choice of AVX-512, AVX2 or SSE2, made at run time
#endif

#include <algorithm>
#include <cstring>
#include <new>

#include "detail/streamer.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cokv {
namespace {

static_assert(sizeof(XXH3_state_t) <= 576 && alignof(XXH3_state_t) <= 64);

// Small enough that the copy finds in the first-level cache what the hash has just read; streamed, also small enough
// that reads from memory and stores to it take turns often: by 16 KiB each waits for the other, a fifth of the time.
constexpr std::size_t piece = 16 << 10;
constexpr std::size_t streamed_piece = 2 << 10;
// Below this a streaming store costs more than it saves: the destination fits into the caches.
constexpr std::size_t least_streamed = 16 << 10;

#if defined(__x86_64__)
// `into` is aligned to 64 bytes and n is a multiple of 64.
__attribute__((target("avx512f"))) void stream_avx512(std::byte* into, const std::byte* from, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; i += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(into + i), _mm512_loadu_si512(from + i));
}

__attribute__((target("avx2"))) void stream_avx2(std::byte* into, const std::byte* from, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; i += 64) {
    auto low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    auto high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(into + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(into + i + 32), high);
  }
}

void stream_sse2(std::byte* into, const std::byte* from, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(into + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
}

copy_path find_best() noexcept {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return copy_path::stream_avx512;
  if (__builtin_cpu_supports("avx2")) return copy_path::stream_avx2;
  return copy_path::stream_sse2;
}
#else
copy_path find_best() noexcept { return copy_path::memcpy; }
#endif

using state_bytes = std::array<std::byte, 576 + 64>;

std::byte* aligned(const state_bytes& bytes) noexcept {
  auto* at = const_cast<std::byte*>(bytes.data());
  return at + (-reinterpret_cast<std::uintptr_t>(at) & 63);
}

XXH3_state_t* state_of(const state_bytes& bytes) noexcept {
  return std::launder(reinterpret_cast<XXH3_state_t*>(aligned(bytes)));
}

void take(XXH3_state_t* state, const std::byte* bytes, std::size_t n) noexcept { XXH3_64bits_update(state, bytes, n); }

}  // namespace

copy_path best_copy_path() noexcept {
  static const copy_path best = find_best();
  return best;
}

namespace detail {

streamer::streamer(copy_path path, std::size_t bytes) noexcept {
  if (path == copy_path::automatic)
    path_ = bytes < least_streamed ? copy_path::memcpy : best_copy_path();
  else
    path_ = std::min(path, best_copy_path());
}

void streamer::operator()(std::span<std::byte> to, std::span<const std::byte> what) const noexcept {
  auto* into = to.data();
  const auto* from = what.data();
  const auto n = what.size();
  if (n == 0) return;
#if defined(__x86_64__)
  if (path_ != copy_path::memcpy) {
    // Whole cache lines of the destination, and what is left over at both ends.
    auto head = std::min<std::size_t>(-reinterpret_cast<std::uintptr_t>(into) & 63, n);
    std::memcpy(into, from, head);
    auto body = (n - head) & ~std::size_t{63};
    if (path_ == copy_path::stream_avx512)
      stream_avx512(into + head, from + head, body);
    else if (path_ == copy_path::stream_avx2)
      stream_avx2(into + head, from + head, body);
    else
      stream_sse2(into + head, from + head, body);
    auto done = head + body;
    std::memcpy(into + done, from + done, n - done);
    return;
  }
#endif
  std::memcpy(into, from, n);
}

void streamer::operator()(digest_state& digest, std::span<std::byte> into,
                          std::span<const std::byte> from) const noexcept {
  const auto step = path_ == copy_path::memcpy ? piece : streamed_piece;
  for (std::size_t at = 0; at < from.size(); at += step) {
    const auto n = std::min(step, from.size() - at);
    digest.update(from.subspan(at, n));
    (*this)(into.subspan(at, n), from.subspan(at, n));
  }
}

void streamer::finish() const noexcept {
#if defined(__x86_64__)
  if (path_ != copy_path::memcpy) _mm_sfence();
#endif
}

}  // namespace detail

void copy_bytes(std::span<std::byte> into, std::span<const std::byte> from, copy_path path) noexcept {
  const detail::streamer copy(path, from.size());
  copy(into, from);
  copy.finish();
}

void digest_state::reset() noexcept {
  auto* state = ::new (aligned(state_)) XXH3_state_t;
  XXH3_INITSTATE(state);
  XXH3_64bits_reset(state);
}

digest_state::digest_state(const digest_state& other) noexcept {
  ::new (aligned(state_)) XXH3_state_t(*state_of(other.state_));
}

digest_state& digest_state::operator=(const digest_state& other) noexcept {
  if (this != &other) *state_of(state_) = *state_of(other.state_);
  return *this;
}

void digest_state::update(std::span<const std::byte> bytes) noexcept {
  if (!bytes.empty()) take(state_of(state_), bytes.data(), bytes.size());
}

void digest_state::copy(std::span<std::byte> into, std::span<const std::byte> from, copy_path path) noexcept {
  const detail::streamer copy(path, from.size());
  copy(*this, into, from);
  copy.finish();
}

std::uint64_t digest_state::value() const noexcept { return XXH3_64bits_digest(state_of(state_)); }

std::uint64_t digest_of(std::span<const std::byte> bytes) noexcept { return XXH3_64bits(bytes.data(), bytes.size()); }

std::uint64_t digest_of(std::span<const std::span<const std::byte>> pieces) noexcept {
  digest_state d;
  for (auto p : pieces) d.update(p);
  return d.value();
}

std::uint64_t copy_digest(std::span<std::byte> into, std::span<const std::byte> from, copy_path path) noexcept {
  if (from.size() <= piece) {  // in one go: setting up a state costs as much as a small copy
    auto value = digest_of(from);
    copy_bytes(into, from, path);
    return value;
  }
  digest_state d;
  d.copy(into, from, path);
  return d.value();
}

std::uint64_t gather_digest(std::span<std::byte> into, std::span<const std::span<const std::byte>> pieces) noexcept {
  digest_state d;
  std::size_t at = 0;
  for (auto p : pieces) {
    d.copy(into.subspan(at, p.size()), p);
    at += p.size();
  }
  return d.value();
}

std::uint64_t scatter_digest(std::span<const std::span<std::byte>> pieces, std::span<const std::byte> from) noexcept {
  digest_state d;
  std::size_t at = 0;
  for (auto p : pieces) {
    d.copy(p, from.subspan(at, p.size()));
    at += p.size();
  }
  return d.value();
}

}  // namespace cokv

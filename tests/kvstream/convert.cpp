#include "cokv/kvstream/convert.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "cokv/kvstream/converted.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// What a half or a bfloat16 says, by the definition of its fields.
double value_of(std::uint16_t bits, int exponent_bits) {
  const int places = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> places & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << places) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - places);
  return sign * std::ldexp((1 << places) + fraction, exponent - bias - places);
}

int exponent_of(dtype t) { return t == dtype::f16 ? 5 : 8; }

// The nearest by trying those around it; of two that are as near, the even one. Finite values that round to what no finite
// one says give none.
std::optional<std::uint16_t> nearest(float f, dtype t) {
  const int e = exponent_of(t);
  std::uint16_t low = 0, high = static_cast<std::uint16_t>(((1 << e) - 1) << (15 - e));  // zero, infinity
  const double size = std::fabs(static_cast<double>(f));
  const auto largest = static_cast<std::uint16_t>(high - 1);
  const double step = value_of(largest, e) - value_of(static_cast<std::uint16_t>(largest - 1), e);
  if (!std::isinf(f) && size >= value_of(largest, e) + step / 2) return {};
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value_of(middle, e) <= size ? low : high) = middle;
  }
  if (std::isinf(f)) low = high;
  if (!std::isinf(f)) {
    const double below = size - value_of(low, e), above = value_of(high, e) - size;
    if (high <= largest && (above < below || (above == below && low % 2 == 1))) low = high;
  }
  return static_cast<std::uint16_t>(low | (std::signbit(f) ? 0x8000 : 0));
}

template <class To, class From>
std::optional<To> converted_one(From from, dtype from_type, dtype to_type) {
  To to{};
  const bool is =
      convert(std::as_bytes(std::span(&from, 1)), from_type, std::as_writable_bytes(std::span(&to, 1)), to_type);
  return is ? std::optional(to) : std::nullopt;
}

struct stage {
  explicit stage(const asio::any_io_executor& ex, std::size_t bytes)
      : dev(any_device(ex)),
        staging(staging_pool::make(dev, bytes, 3, memory_kind::host).value()),
        through{staging, dev.make_stream({.name = "convert"}).value()} {}
  // A device that is done lets go of its operation's buffers a moment later.
  awaitable<void> all_back() {
    std::vector<buffer> all;
    for (int i = 0; i < 3; ++i) all.push_back(co_await staging.async_acquire());
  }
  device dev;
  staging_pool staging;
  packing through;
};

std::vector<float> floats(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> out(n);
  for (auto& f : out) f = std::ldexp(static_cast<float>(random() % 20001) - 10000.f, -static_cast<int>(random() % 16));
  return out;
}

}  // namespace

TEST_CASE("convert: every half and every bfloat16 says the same as a float, and comes back as it was") {
  for (auto t : {dtype::f16, dtype::bf16})
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      const auto is = value_of(half, exponent_of(t));
      const auto f = converted_one<float>(half, t, dtype::f32);
      REQUIRE(f.has_value());
      if (std::isnan(is)) {
        CHECK(std::isnan(*f));
        const auto back = converted_one<std::uint16_t>(*f, dtype::f32, t);
        REQUIRE(back.has_value());
        CHECK(std::isnan(value_of(*back, exponent_of(t))));
        continue;
      }
      if (static_cast<double>(*f) != is) FAIL_CHECK(bits);
      if (converted_one<std::uint16_t>(*f, dtype::f32, t) != half) FAIL_CHECK(bits);
      if (converted_one<std::uint16_t>(half, t, t) != half) FAIL_CHECK(bits);
    }
}

TEST_CASE(
    "convert: floats become the nearest half or bfloat16, of two the even one, and none that is finite an infinity") {
  std::mt19937 random(7);
  std::size_t none = 0;
  const auto check = [&](float f, dtype t) {
    const auto is = nearest(f, t);
    none += !is;
    if (converted_one<std::uint16_t>(f, dtype::f32, t) != is) FAIL_CHECK(f, " to ", to_string(t));
  };
  for (auto t : {dtype::f16, dtype::bf16}) {
    for (int i = 0; i < 200'000; ++i) {
      const auto f = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      if (!std::isnan(f)) check(f, t);
    }
    // Halfway between two that are neighbours, and the floats beside it.
    for (int i = 0; i < 20'000; ++i) {
      const auto half = static_cast<std::uint16_t>(random());
      const auto a = value_of(half, exponent_of(t)), b = value_of(static_cast<std::uint16_t>(half + 1), exponent_of(t));
      if (!std::isfinite(a) || !std::isfinite(b)) continue;
      const auto middle = static_cast<float>((a + b) / 2);
      for (float f : {middle, std::nextafter(middle, 0.f), std::nextafter(middle, std::copysign(1e38f, middle))})
        check(f, t);
    }
    for (float f : {0.f, -0.f, 65504.f, 65519.f, 65520.f, -65520.f, 1e-8f, std::numeric_limits<float>::max(),
                    std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::infinity()})
      check(f, t);
  }
  CHECK(none > 10'000);  // beyond what a half can say
}

TEST_CASE("convert: a bfloat16 comes to a half by value, and not where it is too large for one") {
  CHECK(converted_one<std::uint16_t>(std::uint16_t{0x3f80}, dtype::bf16, dtype::f16) == std::uint16_t{0x3c00});
  CHECK(!converted_one<std::uint16_t>(std::uint16_t{0x4780}, dtype::bf16, dtype::f16));  // 65536
  CHECK(converted_one<std::uint16_t>(std::uint16_t{0x7bff}, dtype::f16, dtype::bf16) == std::uint16_t{0x4780});
  CHECK(converted_one<std::uint16_t>(std::uint16_t{0x7f80}, dtype::bf16, dtype::f16) == std::uint16_t{0x7c00});
  CHECK(!convertible(dtype::u8));
  CHECK(!convertible(dtype::fp8_e4m3));
}

TEST_CASE("convert: what is put in pieces of any size, through staging of any size, arrives converted") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    for (const bool on_device : {false, true})
      for (std::size_t room : {128u, 300u, 4096u, 1u << 20})
        for (auto [from, to] : {std::pair{dtype::f32, dtype::bf16},
                                {dtype::bf16, dtype::f32},
                                {dtype::f32, dtype::f16},
                                {dtype::f16, dtype::bf16}}) {
          stage s(ex, room);
          const auto values = floats(room == 1 << 20 ? 200'000 : 3000, static_cast<unsigned>(room));
          const auto n = values.size();
          auto mine = on_device ? s.dev.allocate(n * size_of(from)).value() : buffer::host(n * size_of(from));
          auto theirs = buffer::host((n + 8) * size_of(to));
          std::ranges::fill(theirs.bytes(), std::byte{0xdd});
          std::vector<std::byte> expected(n * size_of(to));
          REQUIRE(convert(std::as_bytes(std::span(values)), dtype::f32, {mine.data(), mine.size()}, from));
          REQUIRE(convert({mine.data(), mine.size()}, from, expected, to));
          auto out = converted(local_window(theirs, s.through.kernels).to(), {from, to, &s.through});
          CHECK(out.size() == (n + 8) * size_of(from));
          std::vector<buffer> pieces;
          for (std::size_t at = 0, i = 1; at < n; ++i) {
            const auto step = std::min<std::size_t>(n - at, i * 37 % 211 + 1);
            pieces.push_back(mine.slice(at * size_of(from), step * size_of(from)));
            at += step;
          }
          const auto ec = co_await out.backend()->put(4 * size_of(from), std::move(pieces), event());
          CHECK(!ec);
          const auto got = theirs.bytes().subspan(4 * size_of(to), expected.size());
          CHECK(std::ranges::equal(got, expected));
          CHECK(std::to_integer<int>(theirs.bytes()[4 * size_of(to) - 1]) == 0xdd);
          CHECK(std::to_integer<int>(theirs.bytes()[4 * size_of(to) + expected.size()]) == 0xdd);
          co_await s.all_back();
        }
  });
}

TEST_CASE("convert: an element that is too large, half an element, and types that nobody converts are errors") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    stage s(ex, 4096);
    auto theirs = buffer::host(1 << 20);
    const local_window window(theirs, s.through.kernels);
    auto to_half = converted(window.to(), {dtype::f32, dtype::f16, &s.through});
    for (const std::size_t n : {100u, 100'000u}) {
      auto mine = buffer::host(n * 4);
      auto* f = reinterpret_cast<float*>(mine.data());
      std::fill_n(f, n, 1.f);
      f[n / 2] = 70000.f;
      CHECK(co_await to_half.backend()->put(0, {mine}, event()) == errc::out_of_range);
      f[n / 2] = 60000.f;
      CHECK(!co_await to_half.backend()->put(0, {mine}, event()));
      CHECK(co_await to_half.backend()->put(0, {mine.slice(0, 6)}, event()) == errc::invalid_argument);
      CHECK(co_await to_half.backend()->put(2, {mine.slice(0, 8)}, event()) == errc::invalid_argument);
      auto bytes = converted(window.to(), {dtype::u8, dtype::f16, &s.through});
      CHECK(co_await bytes.backend()->put(0, {mine}, event()) == errc::invalid_argument);
    }
    co_await s.all_back();
  });
}

// Little-endian numbers of messages between the workers of a model: written one behind the other, and read with every length
// checked against what is there.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cokv::detail {

class byte_writer {
 public:
  template <std::unsigned_integral T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void real(float value) { number(std::bit_cast<std::uint32_t>(value)); }
  // As many 32-bit numbers as there are, behind how many.
  template <class T>
  void list(const std::vector<T>& values) {
    static_assert(sizeof(T) == 4);
    number(static_cast<std::uint32_t>(values.size()));
    for (auto v : values) number(static_cast<std::uint32_t>(v));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// What is not there reads as 0, and spoils the whole: see over().
class byte_reader {
 public:
  explicit byte_reader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    T value = 0;
    if (left_.size() < sizeof(T)) return spoil(), value;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(left_[i]) << (8 * i));
    left_ = left_.subspan(sizeof(T));
    return value;
  }
  float real() { return std::bit_cast<float>(number<std::uint32_t>()); }
  // How many follow, of at least `each` bytes: no more than `most`, and than there can be.
  std::size_t count(std::size_t most, std::size_t each) {
    const std::size_t n = number<std::uint32_t>();
    if (n > most || n > left_.size() / each) return spoil(), 0;
    return n;
  }
  template <class T>
  std::vector<T> list(std::size_t most) {
    std::vector<T> out(count(most, 4));
    for (auto& v : out) v = static_cast<T>(number<std::uint32_t>());
    return out;
  }
  bool flag() {
    const auto v = number<std::uint32_t>();
    if (v > 1) spoil();
    return v == 1;
  }
  void spoil() {
    good_ = false;
    left_ = {};
  }
  // What a message begins with.
  bool headed(std::uint32_t magic, std::uint32_t version) {
    if (number<std::uint32_t>() != magic || number<std::uint32_t>() != version) spoil();
    return good_;
  }
  bool good() const noexcept { return good_; }
  bool over() const noexcept { return good_ && left_.empty(); }  // all of it was read, and made sense

 private:
  std::span<const std::byte> left_;
  bool good_ = true;
};

}  // namespace cokv::detail

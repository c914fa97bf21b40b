#include "cache/chunk_decoder.hpp"

#include "cokv/runtime/error.hpp"

namespace cokv::cache {
namespace {

constexpr unsigned max_digits = 15;         // below 2^60
constexpr std::size_t max_extra = 4 << 10;  // extensions and trailers of a whole body: none of them is used

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void chunk_decoder::take(std::uint64_t n) noexcept {
  data_ -= n;
  if (data_ == 0) state_ = state::data_cr;
}

result<std::size_t> chunk_decoder::feed(std::string_view received) {
  std::size_t eaten = 0;
  while (eaten < received.size() && data_ == 0 && !done())
    if (!step(received[eaten++])) return errc::protocol;
  return eaten;
}

bool chunk_decoder::step(char c) noexcept {
  switch (state_) {
    case state::size:
      if (const int digit = hex_digit(c); digit >= 0) {
        size_ = size_ * 16 + static_cast<unsigned>(digit);
        return ++digits_ <= max_digits;
      }
      if (digits_ == 0) return false;
      if (c == '\r') return state_ = state::size_end, true;
      if (c == ';' || c == ' ' || c == '\t') return state_ = state::extension, true;
      return false;
    case state::extension:
      if (c == '\r') return state_ = state::size_end, true;
      return c != '\n' && ++extra_ <= max_extra;
    case state::size_end:
      if (c != '\n') return false;
      data_ = size_;
      state_ = size_ ? state::data : state::trailer;
      size_ = 0;
      digits_ = 0;
      return true;
    case state::data_cr:
      state_ = state::data_lf;
      return c == '\r';
    case state::data_lf:
      state_ = state::size;
      return c == '\n';
    case state::trailer:
      if (c == '\r') return state_ = state::end_lf, true;
      state_ = state::trailer_line;
      [[fallthrough]];
    case state::trailer_line:
      if (c == '\r') return state_ = state::trailer_lf, true;
      return c != '\n' && ++extra_ <= max_extra;
    case state::trailer_lf:
      state_ = state::trailer;
      return c == '\n';
    case state::end_lf:
      state_ = state::done;
      return c == '\n';
    case state::data:
    case state::done:
      break;
  }
  return false;
}

}  // namespace cokv::cache

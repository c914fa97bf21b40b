#include "link/hello.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t fixed = 64 + 16;  // up to the first text
constexpr std::size_t meeting_bytes = 256;

void append_text(std::vector<std::byte>& out, std::string_view text) {
  text = text.substr(0, 255);
  out.push_back(static_cast<std::byte>(text.size()));
  append(out, std::as_bytes(std::span(text)));
}

bool take_text(std::span<const std::byte>& in, std::string& text) {
  if (in.empty()) return false;
  const auto n = std::to_integer<std::size_t>(in[0]);
  if (in.size() < 1 + n) return false;
  text.assign(reinterpret_cast<const char*>(in.data()) + 1, n);
  in = in.subspan(1 + n);
  return true;
}

}  // namespace

std::vector<std::byte> encode(const link_hello& h) {
  std::vector<std::byte> out;
  append(out, h.session);
  append(out, h.lane);
  append(out, h.lanes);
  append(out, h.credits);
  append(out, h.messages);
  append(out, h.chunk);
  append(out, std::as_bytes(std::span(h.ns.bytes)));
  append(out, h.worker);
  append(out, h.order);
  append_text(out, h.name);
  append_text(out, h.topology);
  append(out, static_cast<std::uint32_t>(h.sessions.size()));
  for (auto s : h.sessions) append(out, s);
  append(out, std::span(h.meeting));
  return out;
}

result<link_hello> decode_hello(std::span<const std::byte> bytes) {
  if (bytes.size() < fixed) return errc::protocol;
  const auto* at = bytes.data();
  link_hello h;
  h.session = get<std::uint64_t>(at);
  h.lane = get<std::uint32_t>(at + 8);
  h.lanes = get<std::uint32_t>(at + 12);
  h.credits = get<std::uint32_t>(at + 16);
  h.messages = get<std::uint32_t>(at + 20);
  h.chunk = get<std::uint64_t>(at + 24);
  std::copy_n(at + 32, h.ns.bytes.size(), h.ns.bytes.begin());
  h.worker = get<std::uint64_t>(at + 64);
  h.order = get<std::uint64_t>(at + 72);
  bytes = bytes.subspan(fixed);
  if (!take_text(bytes, h.name) || !take_text(bytes, h.topology) || bytes.size() < 4) return errc::protocol;
  const auto count = get<std::uint32_t>(bytes.data());
  bytes = bytes.subspan(4);
  if (bytes.size() == std::size_t{8} * count + meeting_bytes) {
    const auto meeting = bytes.last(meeting_bytes);
    h.meeting.assign(meeting.begin(), meeting.end());
    bytes = bytes.first(bytes.size() - meeting_bytes);
  }
  if (bytes.size() != std::size_t{8} * count) return errc::protocol;
  for (; !bytes.empty(); bytes = bytes.subspan(8)) h.sessions.push_back(get<std::uint64_t>(bytes.data()));
  const auto between = [](std::uint64_t n, std::uint64_t least, std::uint64_t most) { return n >= least && n <= most; };
  if (h.lane >= most_lane_numbers || !between(h.lanes, 1, 65536) || !between(h.credits, 1, 65536) ||
      !between(h.messages, 1, 65536) || !between(h.chunk, 4096, std::uint64_t{64} << 20))
    return errc::protocol;
  return h;
}

}  // namespace cokv::detail

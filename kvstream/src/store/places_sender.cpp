#include "store/places_sender.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "store/http_remote.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t piece_bytes = 512 << 10;  // told at once, unless one segment is more
constexpr std::uint64_t most_copied = 8 << 20;  // a segment; taking two from the system holds the loop up for 4 ms
constexpr std::size_t most_files = 8;           // shown over one connection

// The number by which the server knows it. One is left for memory of the connection's own.
struct numbered {
  std::uint64_t number;
  bool fresh;
};
std::optional<numbered> number_of(shown_memory& shown, const std::shared_ptr<const int>& file, bool own) {
  for (std::size_t i = 0; i < shown.files.size(); ++i)
    if (shown.files[i].lock() == file) return numbered{i, false};
  if (shown.files.size() + !own >= most_files) return std::nullopt;
  shown.files.push_back(file);
  return numbered{shown.files.size() - 1, true};
}

}  // namespace

std::string in_chunk(std::span<const std::byte> bytes) {
  std::array<char, 20> size{};
  const auto end = std::to_chars(size.data(), size.data() + size.size(), bytes.size(), 16).ptr;
  std::string out(size.data(), end);
  out += "\r\n";
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return out += "\r\n";
}

places_sender::places_sender(const stream_begin& about, bool stable)
    : about_(about),
      stable_(stable),
      part_(std::max<std::uint64_t>(piece_bytes, std::ranges::max(about.layout.segments))),
      parts_(part_ == piece_bytes ? 4 : 2) {}

bool places_sender::fits(const stream_begin& about) {
  const auto& all = about.layout.segments;
  return about.digest == digest_algorithm::xxh3_64 && !all.empty() && std::ranges::max(all) <= most_copied;
}

result<places_sender::piece> places_sender::lying(shown_memory& shown, const std::vector<buffer>& segments,
                                                  std::size_t first) const {
  auto at = export_shared(segments[first]);
  if (!at) return at.error();
  const auto number = number_of(shown, at->file, false);
  if (!number) return errc::unsupported;
  piece out{{.memory = number->number, .generation = about_.generation, .layers = 1, .lives = {}, .places = {}},
            number->fresh ? at->file : nullptr};
  const auto file = at->file;
  for (std::size_t i = first, bytes = 0; i < segments.size() && (i == first || bytes < piece_bytes); ++i) {
    if (i != first) at = export_shared(segments[i]);
    if (!at || at->file != file) break;
    out.where.places.push_back({at->offset, digest_of(segments[i].bytes())});
    out.where.lives.push_back(0);
    bytes += segments[i].size();
  }
  return out;
}

result<places_sender::piece> places_sender::copied(shown_memory& shown, const std::vector<buffer>& segments,
                                                   std::size_t first) {
  if (shown.own.size() < parts_ * part_) {
    auto made = allocate_shared(parts_ * part_);
    if (!made) return made.error();
    shown.own = std::move(*made);
  }
  const auto at = export_shared(shown.own);
  if (!at) return at.error();
  const auto number = number_of(shown, at->file, true);
  if (!number) return errc::too_large;
  piece out{{.memory = number->number, .generation = about_.generation, .layers = 1, .lives = {}, .places = {}},
            number->fresh ? at->file : nullptr,
            false};
  auto offset = next_++ % parts_ * part_;  // what lay there was copied: no more are under way than there are parts
  const auto end = offset + part_;
  for (std::size_t i = first; i < segments.size() && segments[i].size() <= end - offset; ++i) {
    if (i != first && export_shared(segments[i])) break;
    const auto into = shown.own.slice(offset, segments[i].size());
    out.where.places.push_back({at->offset + offset, copy_digest(into.bytes(), segments[i].bytes())});
    out.where.lives.push_back(0);
    offset += segments[i].size();
  }
  return out;
}

awaitable<error_code> places_sender::heard(http_connection& from) {
  const auto head = co_await from.read_head();
  if (!head) co_return head.error();
  if (head->status != 102) co_return head->status >= 400 ? error_of(head->status) : errc::protocol;
  under_way_.pop_front();
  co_return error_code();
}

awaitable<error_code> places_sender::send(http_connection& to, const std::vector<buffer>& segments) {
  for (std::size_t first = 0; first < segments.size();) {
    if (under_way_.size() == parts_)
      if (auto ec = co_await heard(to)) co_return ec;
    auto next = lying(to.shown(), segments, first);
    if (!next) next = copied(to.shown(), segments, first);
    if (!next) co_return next.error();
    if (next->file) to.attach(std::move(next->file));
    if (auto ec = co_await say(to, in_chunk(next->where.encode()))) co_return ec;
    under_way_.push_back(next->callers);
    first += next->where.blocks();
  }
  while (!stable_ && std::ranges::find(under_way_, true) != under_way_.end())
    if (auto ec = co_await heard(to)) co_return ec;
  co_return error_code();
}

awaitable<error_code> places_sender::finish(http_connection& to) {
  const block_places nothing{.memory = 0, .generation = about_.generation, .layers = 0, .lives = {}, .places = {}};
  if (auto ec = co_await say(to, in_chunk(nothing.encode()) + in_chunk({}))) co_return ec;
  co_return co_await all_heard(to);
}

// A server that refuses what came before closes, too: its answer says more than the failed write.
awaitable<error_code> places_sender::say(http_connection& to, std::string what) {
  asio::const_buffer bytes = asio::buffer(what);
  const auto ec = co_await to.write({&bytes, 1});
  if (!ec || ec == asio::error::operation_aborted) co_return ec;
  const auto answer = co_await all_heard(to);
  co_return answer ? answer : ec;
}

awaitable<error_code> places_sender::all_heard(http_connection& from) {
  while (!under_way_.empty())
    if (auto ec = co_await heard(from)) co_return ec;
  co_return error_code();
}

}  // namespace cokv::detail

#include "store/log_index.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

buffer empty_chunk(std::size_t bytes) {
  auto b = buffer::host(bytes, log_page);
  std::memset(b.data(), 0, b.size());
  return b;
}

bool zeros(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Once more what decode_log_head cannot know: the place.
result<log_head> entry_at(std::span<const std::byte> bytes, std::uint64_t serial, std::uint64_t at) {
  auto head = decode_log_head(bytes);
  if (head && (head->serial != serial || head->at != at)) return errc::digest_mismatch;
  return head;
}

}  // namespace

log_index::log_index(std::uint64_t serial, bool carried, std::uint32_t chunk_bytes)
    : serial_(serial), chunk_bytes_(chunk_bytes), chunk_(empty_chunk(chunk_bytes)) {
  end_ = chunk_bytes;
  log_head head{.kind = log_kind::file, .serial = serial, .value = chunk_bytes, .detail = carried ? 1u : 0u};
  encode_log_head(head, {}, chunk_.bytes().first(log_entry_head));
  fill_ = log_entry_head;
  changed(0, chunk_.size());  // all of it: that there is room for entries is known before they come
}

std::uint64_t log_index::allocate(std::uint64_t bytes) {
  const auto at = log_pages(end_);
  end_ = at + bytes;
  return at;
}

bool log_index::take_back(std::uint64_t at, std::uint64_t bytes) {
  if (log_pages(at + bytes) != log_pages(end_)) return false;
  end_ = at;
  return true;
}

void log_index::changed(std::size_t from, std::size_t to) {
  dirty_from_ = dirty_to_ == 0 ? from : std::min(dirty_from_, from);
  dirty_to_ = std::max(dirty_to_, to);
}

void log_index::flush() {
  if (dirty_to_ == 0) return;
  const auto from = dirty_from_ / log_page * log_page;
  const auto to = static_cast<std::size_t>(log_pages(dirty_to_));
  writes_.push_back({chunk_at_ + from, chunk_.slice(from, to - from)});
  dirty_from_ = dirty_to_ = 0;
}

void log_index::put_last(log_kind kind, std::uint64_t value, std::uint32_t detail) {
  const auto last = chunk_.size() - log_entry_head;
  log_head head{.kind = kind, .serial = serial_, .at = chunk_at_ + last, .value = value, .detail = detail};
  encode_log_head(head, {}, chunk_.bytes().subspan(last));
  if (dirty_to_ != 0 && dirty_to_ <= last / log_page * log_page) flush();  // not the pages between
  changed(last, chunk_.size());
}

std::uint64_t log_index::add(log_kind kind, std::uint64_t sequence, std::uint64_t batch,
                             std::span<const std::byte> body) {
  const auto bytes = log_entry_head + body.size();
  if (fill_ + bytes + log_entry_head > chunk_.size()) {
    const auto size = static_cast<std::uint32_t>(growth(bytes, chunk_bytes_));
    const auto at = allocate(size);
    put_last(log_kind::link, at, size);
    flush();
    chunk_ = empty_chunk(size);
    chunk_at_ = at;
    fill_ = 0;
    changed(0, size);
  }
  log_head head{.kind = kind, .serial = serial_, .at = chunk_at_ + fill_, .sequence = sequence, .value = batch};
  encode_log_head(head, body, chunk_.bytes().subspan(fill_));
  std::copy(body.begin(), body.end(), chunk_.bytes().begin() + static_cast<std::ptrdiff_t>(fill_ + log_entry_head));
  changed(fill_, fill_ + bytes);
  fill_ += bytes;
  return head.at;
}

void log_index::seal() { put_last(log_kind::seal, 0, 0); }

std::vector<log_write> log_index::take_writes() {
  flush();
  return std::exchange(writes_, {});
}

log_chunk read_log_chunk(std::span<const std::byte> chunk, std::uint64_t serial, std::uint64_t at) {
  constexpr auto none = std::numeric_limits<std::uint64_t>::max();
  log_chunk out;
  if (chunk.size() < 2 * log_entry_head || chunk.size() % log_entry_head != 0) return out;
  const auto last = chunk.size() - log_entry_head;
  std::size_t unnamed = 0;  // damaged entries since the last intact one
  for (std::size_t pos = 0; pos < last;) {
    const auto rest = chunk.subspan(pos, last - pos);
    auto head = entry_at(rest, serial, at + pos);
    if (!head) {
      // What merely does not begin an entry is the inside of one that is damaged, or was never written.
      unnamed += head.error() == errc::digest_mismatch;
      pos += log_entry_head;
      continue;
    }
    const auto bytes = std::min<std::size_t>(head->bytes, rest.size());
    const auto body = rest.subspan(log_entry_head, bytes - log_entry_head);
    const bool whole = bytes == head->bytes && !check_log_body(rest, body);
    const bool known = head->kind == log_kind::record || head->kind == log_kind::removal;
    pos += whole ? bytes : log_entry_head;
    if (!whole) ++unnamed;
    if (!whole || !known) continue;
    out.damaged.insert(out.damaged.end(), std::exchange(unnamed, 0), head->value);
    out.entries.push_back({*head, body});
  }
  const auto slot = chunk.subspan(last);
  if (auto head = entry_at(slot, serial, at + last)) {
    out.sealed = head->kind == log_kind::seal;
    const bool sound = head->kind == log_kind::link && head->value % log_page == 0 && head->value > at &&
                       head->detail % log_page == 0 && head->detail != 0 && head->detail <= log_chunk_most;
    if (sound) {
      out.next_at = head->value;
      out.next_bytes = head->detail;
    }
    if (!sound && !out.sealed) ++unnamed;
  } else if (!zeros(slot)) {
    ++unnamed;
  }
  out.damaged.insert(out.damaged.end(), unnamed, none);
  return out;
}

result<log_first> read_log_first(std::span<const std::byte> bytes, std::uint64_t serial) {
  if (zeros(bytes.first(std::min(bytes.size(), log_entry_head)))) return errc::not_found;
  auto head = decode_log_head(bytes);
  if (!head) return head.error();
  if (head->serial != serial) return errc::protocol;  // misnamed
  const auto chunk = head->value;
  if (head->kind != log_kind::file || head->at != 0 || head->detail > 1) return errc::protocol;
  if (chunk == 0 || chunk % log_page != 0 || chunk > log_chunk_most) return errc::protocol;
  return log_first{head->detail == 1, static_cast<std::uint32_t>(chunk)};
}

}  // namespace cokv::detail

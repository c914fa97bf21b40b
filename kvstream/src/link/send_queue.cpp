#include "link/send_queue.hpp"

#include <algorithm>

#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_buffers = 64;

std::uint64_t in_place(const outgoing_frame& frame) { return frame.header.in_place ? frame.header.length : 0; }

}  // namespace

std::vector<buffer> payload_of(std::vector<std::byte> bytes) {
  const auto n = bytes.size();
  auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  auto* data = owner->data();
  return {buffer::adopt(data, n, memory_kind::host, std::move(owner))};
}

void send_queue::push(outgoing_frame frame) {
  item i;
  i.head = encode(frame.header);
  if (frame.header.in_place) {
    put(i.trailer.data(), frame.sealed);
    i.sealed = true;
  }
  in_place_ += in_place(frame);
  i.total = link_header_bytes + (frame.header.has_payload() ? frame.header.length : 0) +
            (frame.header.has_trailer() ? link_trailer_bytes : 0);
  i.frame = std::move(frame);
  bytes_ += i.total;
  items_.push_back(std::move(i));
}

// Payload bytes up to there are about to be listed: their digest is made now.
void send_queue::digest(item& i, std::uint64_t upto) {
  if (!i.frame.header.has_trailer() || i.sealed) return;
  if (i.digested == 0) {
    digest_.reset();
    digest_.update(i.head);
  }
  auto begin = i.piece_begin;
  for (auto p = i.piece; p < i.frame.payload.size() && begin < upto; ++p) {
    const auto& piece = i.frame.payload[p];
    const auto end = begin + piece.size();
    if (end > i.digested) {
      const auto from = std::max(begin, i.digested) - begin, to = std::min(end, upto) - begin;
      digest_.update(piece.bytes().subspan(from, to - from));
    }
    begin = end;
  }
  i.digested = upto;
  if (upto < i.frame.header.length) return;
  put(i.trailer.data(), digest_.value());
  i.sealed = true;
}

std::span<const asio::const_buffer> send_queue::next(std::uint64_t most) {
  list_.clear();
  std::uint64_t skip = sent_, room = most;
  for (auto& i : items_) {
    i.listed = true;
    auto add = [&](const std::byte* data, std::uint64_t n) {
      if (skip >= n) return skip -= n, true;
      if (room == 0 || list_.size() == most_buffers) return false;
      const auto here = std::min(n - skip, room);
      list_.emplace_back(data + skip, here);
      room -= here;
      const bool whole = skip + here == n;
      skip = 0;
      return whole;
    };
    if (!add(i.head.data(), link_header_bytes)) break;
    auto upto = i.piece_begin;  // of the payload
    skip -= std::min(skip, i.piece_begin);
    bool whole = true;
    for (auto p = i.piece; p < i.frame.payload.size() && whole; ++p) {
      const auto& piece = i.frame.payload[p];
      const auto before = room, skipped = std::min<std::uint64_t>(skip, piece.size());
      whole = add(piece.data(), piece.size());
      upto += skipped + (before - room);
    }
    if (i.frame.header.has_payload()) digest(i, std::max(upto, i.digested));
    if (!whole) break;
    if (i.frame.header.has_trailer() && !add(i.trailer.data(), link_trailer_bytes)) break;
    if (room == 0 || list_.size() == most_buffers) break;
  }
  return list_;
}

std::shared_ptr<void> send_queue::listed() const {
  auto owners = std::make_shared<std::vector<std::pair<std::vector<buffer>, std::shared_ptr<void>>>>();
  for (const auto& i : items_) {
    if (!i.listed) break;
    if (i.piece < i.frame.payload.size())
      owners->emplace_back(
          std::vector(i.frame.payload.begin() + static_cast<std::ptrdiff_t>(i.piece), i.frame.payload.end()),
          i.frame.keep_alive);
  }
  return owners;
}

std::uint32_t send_queue::written(std::uint64_t n) {
  std::uint32_t answers = 0;
  bytes_ -= n;
  sent_ += n;
  while (!items_.empty() && sent_ >= items_.front().total) {
    sent_ -= items_.front().total;
    answers += items_.front().frame.answer;
    in_place_ -= in_place(items_.front().frame);
    items_.pop_front();
  }
  if (items_.empty()) return answers;
  auto& i = items_.front();
  while (i.piece < i.frame.payload.size() &&
         sent_ >= link_header_bytes + i.piece_begin + i.frame.payload[i.piece].size())
    i.piece_begin += i.frame.payload[i.piece++].size();
  return answers;
}

bool send_queue::withdraw(link_type type, std::uint64_t request) {
  for (auto i = items_.rbegin(); i != items_.rend() && !i->listed; ++i) {
    if (i->frame.header.request != request || i->frame.header.type != type) continue;
    bytes_ -= i->total;
    in_place_ -= in_place(i->frame);
    const auto gone = std::move(i->frame);  // what it keeps alive may look at the queue
    items_.erase(std::next(i).base());
    return true;
  }
  return false;
}

void send_queue::keep_begun() {
  std::list<item> gone;
  for (auto i = items_.begin(); i != items_.end();) {
    const auto next = std::next(i);
    if (!i->listed && i->frame.header.type != link_type::done) {
      bytes_ -= i->total;
      in_place_ -= in_place(i->frame);
      gone.splice(gone.end(), items_, i);
    }
    i = next;
  }
}

void send_queue::clear() {
  items_.clear();
  sent_ = bytes_ = in_place_ = 0;
}

}  // namespace cokv::detail

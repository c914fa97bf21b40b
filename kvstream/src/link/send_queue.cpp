#include "link/send_queue.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_buffers = 64;
constexpr std::size_t most_pieces = 56;  // of joined puts: they are to fit into one write

// What lies in place is still to be digested by the peer; without digests it only waits to hear of it, and is told of
// several chunks at a time: waking it takes as long as a fifth of one's copy.
std::uint64_t in_place(const outgoing_frame& frame) {
  constexpr std::uint64_t undigested = 32;
  if (!frame.header.in_place) return 0;
  return frame.header.has_trailer() ? frame.header.length : frame.header.length / undigested;
}

}  // namespace

std::vector<buffer> payload_of(std::vector<std::byte> bytes) {
  const auto n = bytes.size();
  auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  auto* data = owner->data();
  return {buffer::adopt(data, n, memory_kind::host, std::move(owner))};
}

void send_queue::push(outgoing_frame frame) {
  const auto pieces = frame.payload.size();
  auto* i = last_alike(frame.header, pieces, frame.answer);
  if (!i) return add(std::move(frame));
  join(*i, frame.header, pieces, std::move(frame.keep_alive));
  std::ranges::move(frame.payload, std::back_inserter(i->frame.payload));
}

void send_queue::push(const link_header& header, buffer payload) {
  if (auto* i = last_alike(header, 1, false)) {
    join(*i, header, 1, nullptr);
    i->frame.payload.push_back(std::move(payload));
    return;
  }
  outgoing_frame frame{.header = header};
  frame.payload.push_back(std::move(payload));
  add(std::move(frame));
}

void send_queue::answer(std::uint64_t request, std::uint32_t code) {
  const link_header header{.type = link_type::done, .code = code, .request = request};
  if (auto* i = last_alike(header, 0, true)) return join(*i, header, 0, nullptr);
  add({.header = header, .answer = true});
}

void send_queue::add(outgoing_frame frame) {
  spare_.empty() ? void(items_.emplace_back()) : items_.splice(items_.end(), spare_, spare_.begin());
  auto& i = items_.back();
  if (frame.header.in_place) {
    put(i.trailer.data(), frame.sealed);
    i.sealed = true;
  }
  in_place_ += in_place(frame);
  auto room = std::exchange(i.frame, std::move(frame)).payload;  // of one before
  if (i.frame.payload.size() < room.capacity()) {
    std::ranges::move(i.frame.payload, std::back_inserter(room));
    i.frame.payload = std::move(room);
  }
  count(i);
  if (i.frame.header.type == link_type::message) put_ahead();
}

// A message is a word, and what waits before it may be megabytes: it goes before those of them that have not begun. Other
// messages, and all that is answered, keep their order.
void send_queue::put_ahead() {
  const auto last = std::prev(items_.end());
  auto at = last;
  while (at != items_.begin()) {
    const auto& before = *std::prev(at);
    const auto type = before.frame.header.type;
    if (before.listed || (type != link_type::put && type != link_type::data)) break;
    --at;
  }
  items_.splice(at, items_, last);
}

// The front one is written. What it referenced is let go, its lists are kept.
void send_queue::pop() {
  constexpr std::size_t most_spare = 8, most_room = 1024;  // of pieces
  auto& i = items_.front();
  if (spare_.size() == most_spare || i.frame.payload.capacity() > most_room) return items_.pop_front();
  const auto gone = std::move(i.frame.keep_alive);
  auto payload = std::move(i.frame.payload);
  auto joined = std::move(i.joined);
  auto pieces = std::move(i.pieces);
  auto before = std::move(i.before);
  payload.clear(), joined.clear(), pieces.clear(), before.clear();
  i = {};
  i.frame.payload = std::move(payload);
  i.joined = std::move(joined);
  i.pieces = std::move(pieces);
  i.before = std::move(before);
  spare_.splice(spare_.end(), items_, items_.begin());
}

// What it takes to send it.
void send_queue::count(item& i) {
  const auto& h = i.frame.header;
  bytes_ -= i.total;
  i.total = link_header_bytes + (h.has_payload() ? h.length : 0) + (h.has_trailer() ? link_trailer_bytes : 0);
  if (const auto n = i.joined.size(); n > 1)
    i.total += link_trailer_bytes +
               (h.type == link_type::put ? link_header_bytes + n * sizeof(put_place) : n * sizeof(put_place::request));
  bytes_ += i.total;
}

// The last one that waits, if this may join it: both are puts into the same window, or answers that say the same.
send_queue::item* send_queue::last_alike(const link_header& h, std::size_t pieces, bool answer) {
  if (items_.empty() || most_joined_ == 0) return nullptr;
  auto& i = items_.back();
  const auto& last = i.frame.header;
  if (i.listed || i.joined.size() == most_listed || h.type != last.type || h.code != last.code) return nullptr;
  const auto alike = [](const link_header& a) { return std::tuple(a.window, a.generation, a.algorithm); };
  const bool puts = h.type == link_type::put && h.has_payload() && last.has_payload() && alike(h) == alike(last) &&
                    h.length + last.length <= most_joined_ && i.frame.payload.size() + pieces <= most_pieces;
  const bool answers = h.type == link_type::done && h.request != 0 && last.request != 0 && answer && i.frame.answer;
  return puts || answers ? &i : nullptr;
}

// Its bytes are appended by who calls.
void send_queue::join(item& i, const link_header& h, std::size_t pieces, std::shared_ptr<void> keep_alive) {
  const auto add = [&](const link_header& what, std::size_t n) {
    i.joined.push_back({what.request, what.offset, what.length});
    i.pieces.push_back(static_cast<std::uint32_t>(n));
  };
  if (i.joined.empty()) {
    i.joined.reserve(most_listed);
    i.pieces.reserve(most_listed);
    if (pieces > 0) i.frame.payload.reserve(most_pieces);
    add(i.frame.header, i.frame.payload.size());
    if (i.frame.keep_alive) i.alive.push_back(std::move(i.frame.keep_alive));
  }
  if (keep_alive || !i.alive.empty()) {
    i.alive.resize(i.joined.size());
    i.alive.push_back(std::move(keep_alive));
  }
  add(h, pieces);
  i.frame.header.length += h.length;
  count(i);
}

// Nothing joins it, and nothing leaves it, from here on.
void send_queue::begin(item& i) {
  i.listed = true;
  if (!i.alive.empty()) i.frame.keep_alive = std::make_shared<decltype(i.alive)>(std::move(i.alive));
  auto& h = i.frame.header;
  if (i.joined.size() == 1) {  // the others were withdrawn
    h.request = i.joined[0].request;
    h.offset = i.joined[0].offset;
  } else if (h.type == link_type::done && !i.joined.empty()) {
    i.frame.payload = payload_of(encode_requests(i.joined));
    h = {.type = link_type::dones,
         .algorithm = digest_algorithm::xxh3_64,
         .code = h.code,
         .length = i.frame.payload[0].size()};
  } else if (!i.joined.empty()) {
    const auto places = encode(i.joined);
    const auto head =
        encode({.type = link_type::places, .algorithm = digest_algorithm::xxh3_64, .length = places.size()});
    i.before.reserve(head.size() + places.size() + link_trailer_bytes);
    i.before.insert(i.before.end(), head.begin(), head.end());
    i.before.insert(i.before.end(), places.begin(), places.end());
    const auto digest = digest_of(i.before);
    i.before.resize(i.before.size() + link_trailer_bytes);
    put(i.before.data() + i.before.size() - link_trailer_bytes, digest);
    h.request = 0;
    h.offset = i.joined.size();
    h.listed = true;
  }
  i.head = encode(h);
}

// Payload bytes up to there are about to be listed: their digest is made now.
void send_queue::digest(item& i, std::uint64_t upto) {
  if (!i.frame.header.has_trailer() || i.sealed) return;
  if (i.digested == 0) {
    digest_.reset();
    digest_.update(i.head);
  }
  auto begin = i.piece_begin;
  std::span<const std::byte> run;  // pieces that lie together are one
  for (auto p = i.piece; p < i.frame.payload.size() && begin < upto; ++p) {
    const auto& piece = i.frame.payload[p];
    const auto end = begin + piece.size();
    if (end > i.digested) {
      const auto from = std::max(begin, i.digested) - begin, to = std::min(end, upto) - begin;
      if (run.data() + run.size() != piece.data() + from) digest_.update(std::exchange(run, {piece.data() + from, 0}));
      run = {run.data(), run.size() + (to - from)};
    }
    begin = end;
  }
  digest_.update(run);
  i.digested = upto;
  if (upto < i.frame.header.length) return;
  put(i.trailer.data(), digest_.value());
  i.sealed = true;
}

// What lies behind the last is one buffer with it.
void send_queue::list(const std::byte* data, std::uint64_t n) {
  if (!list_.empty())
    if (auto& last = list_.back(); static_cast<const std::byte*>(last.data()) + last.size() == data)
      return void(last = {last.data(), last.size() + n});
  list_.emplace_back(data, n);
}

std::span<const asio::const_buffer> send_queue::next(std::uint64_t most) {
  list_.clear();
  std::uint64_t skip = sent_, room = most;
  for (auto& i : items_) {
    if (!list_.empty() && i.total > room && room < most / 4) break;  // rather whole in the next one
    if (!i.listed) begin(i);
    auto add = [&](const std::byte* data, std::uint64_t n) {
      if (skip >= n) return skip -= n, true;
      if (room == 0 || list_.size() == most_buffers) return false;
      const auto here = std::min(n - skip, room);
      list(data + skip, here);
      room -= here;
      const bool whole = skip + here == n;
      skip = 0;
      return whole;
    };
    if (!add(i.before.data(), i.before.size())) break;
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
    if (items_.front().frame.answer)
      answers += std::max<std::uint32_t>(1, static_cast<std::uint32_t>(items_.front().joined.size()));
    in_place_ -= in_place(items_.front().frame);
    pop();
  }
  if (items_.empty()) return answers;
  auto& i = items_.front();
  while (i.piece < i.frame.payload.size() &&
         sent_ >= i.before.size() + link_header_bytes + i.piece_begin + i.frame.payload[i.piece].size())
    i.piece_begin += i.frame.payload[i.piece++].size();
  return answers;
}

bool send_queue::withdraw(link_type type, std::uint64_t request) {
  for (auto i = items_.rbegin(); i != items_.rend() && !i->listed; ++i) {
    if (i->joined.size() > 1 && i->frame.header.type == type && withdraw_joined(*i, request)) return true;
    const auto& h = i->frame.header;
    if (i->joined.size() > 1 || h.type != type || (i->joined.empty() ? h.request : i->joined[0].request) != request)
      continue;
    bytes_ -= i->total;
    in_place_ -= in_place(i->frame);
    const auto gone = std::move(*i);  // what it keeps alive may look at the queue
    items_.erase(std::next(i).base());
    return true;
  }
  return false;
}

bool send_queue::withdraw_joined(item& i, std::uint64_t request) {
  std::size_t at = 0;
  auto piece = i.frame.payload.begin();
  while (at < i.joined.size() && i.joined[at].request != request) piece += i.pieces[at++];
  if (at == i.joined.size()) return false;
  i.frame.header.length -= i.joined[at].length;
  i.frame.payload.erase(piece, piece + i.pieces[at]);
  i.joined.erase(i.joined.begin() + static_cast<std::ptrdiff_t>(at));
  i.pieces.erase(i.pieces.begin() + static_cast<std::ptrdiff_t>(at));
  std::shared_ptr<void> gone;
  if (!i.alive.empty()) {
    gone = std::move(i.alive[at]);
    i.alive.erase(i.alive.begin() + static_cast<std::ptrdiff_t>(at));
  }
  count(i);
  return true;
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

#include "link/link_parser.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv::detail {

std::size_t link_parser::feed(std::span<const std::byte> in) {
  std::size_t taken = 0;
  while (taken < in.size()) {
    std::size_t n = 0;
    if (state_ == state::header)
      n = feed_header(in.subspan(taken));
    else if (state_ == state::payload)
      n = feed_payload(in.subspan(taken));
    if (n == 0) break;
    taken += n;
  }
  return taken;
}

std::size_t link_parser::feed_header(std::span<const std::byte> in) {
  const auto n = std::min(in.size(), link_header_bytes - head_size_);
  std::memcpy(head_.data() + head_size_, in.data(), n);
  head_size_ += n;
  if (head_size_ < link_header_bytes) return n;
  auto header = decode_link(head_);
  if (!header) return fail(header.error()), n;
  header_ = *header;
  std::uint64_t most = 0;
  switch (header_.type) {
    case link_type::put:
    case link_type::data:
    case link_type::get:
      most = limits_.chunk;
      break;
    case link_type::message:
      most = limits_.message;
      break;
    case link_type::hello:
    case link_type::goodbye:
      most = limits_.text;
      break;
    case link_type::grant:
      most = limits_.layout;
      break;
    case link_type::places:
    case link_type::dones:
      most = limits_.list;
      break;
    case link_type::open:
    case link_type::recall:
    case link_type::done:
    case link_type::ping:
    case link_type::fence:
    case link_type::commit:
      break;
  }
  if (header_.in_place && header_.algorithm == digest_algorithm::none) most = std::max(most, most_by_device);
  if (header_.length > most) return fail(errc::too_large), n;
  got_ = header_.has_payload() ? 0 : header_.length;
  trailer_size_ = 0;
  dropped_ = false;
  intact_ = !header_.has_payload();
  state_ = header_.has_payload() ? state::place : header_.has_trailer() ? state::payload : state::frame;
  return n;
}

std::uint64_t link_parser::sealed() const noexcept { return get<std::uint64_t>(trailer_.data()); }

void link_parser::begin_payload() {
  if (state_ != state::place) throw std::logic_error("link_parser: no payload waits for its place");
  part_ = 0;
  filled_ = 0;
  while (part_ < target_.size() && target_[part_].empty()) ++part_;
  if (digests()) {
    digest_.reset();
    digest_.update(head_);
  }
  state_ = state::payload;
}

void link_parser::into(std::vector<std::span<std::byte>> target) {
  std::uint64_t bytes = 0;
  for (auto part : target) bytes += part.size();
  if (bytes != header_.length) throw std::logic_error("link_parser: a target of another size");
  target_ = std::move(target);
  begin_payload();
}

void link_parser::keep() {
  kept_.clear();  // from what is there a vector grows by half or twice, past the limit
  kept_.resize(header_.length);
  target_.assign(1, kept_);
  begin_payload();
}

void link_parser::discard() {
  target_.clear();
  begin_payload();
  dropped_ = true;
}

void link_parser::drop_rest() {
  if (state_ == state::place) return discard();
  if (state_ != state::payload) return;
  target_.clear();
  dropped_ = true;
}

std::uint64_t link_parser::list_room(std::uint64_t most, std::size_t parts,
                                     std::vector<asio::mutable_buffer>& out) const {
  std::uint64_t listed = 0, skip = filled_;
  if (room() == 0) return 0;
  for (auto part = part_; part < target_.size() && parts > 0 && listed < most; ++part, skip = 0) {
    const auto left = target_[part].subspan(skip);
    const auto n = std::min<std::uint64_t>(left.size(), most - listed);
    if (n == 0) continue;
    out.emplace_back(left.data(), n);
    listed += n;
    --parts;
  }
  return listed;
}

void link_parser::filled(std::uint64_t n) {
  if (n > room()) throw std::logic_error("link_parser: filled beyond the payload");
  if (n == 0) return;  // between frames, the one before is not over again
  while (n > 0) {
    const auto part = target_[part_].subspan(filled_);
    const auto here = std::min<std::uint64_t>(part.size(), n);
    if (digests()) digest_.update(part.first(here));
    advance(here);
    n -= here;
  }
}

// That many more bytes of this part of the target are there, and digested.
void link_parser::advance(std::uint64_t n) {
  got_ += n;
  filled_ += n;
  while (part_ < target_.size() && filled_ == target_[part_].size()) {
    ++part_;
    filled_ = 0;
  }
  if (got_ == header_.length && !header_.has_trailer()) end_payload();
}

std::size_t link_parser::feed_payload(std::span<const std::byte> in) {
  if (got_ < header_.length) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(in.size(), header_.length - got_));
    if (dropped_) {
      got_ += n;
      if (got_ == header_.length && !header_.has_trailer()) end_payload();
      return n;
    }
    for (std::size_t at = 0; at < n;) {
      const auto room = target_[part_].subspan(filled_);
      const auto here = std::min(room.size(), n - at);
      const auto to = room.first(here);
      const auto from = in.subspan(at, here);
      digests() ? digest_.copy(to, from, copy_path::memcpy) : void(std::memcpy(to.data(), from.data(), here));
      at += here;
      advance(here);
    }
    return n;
  }
  const auto n = std::min(in.size(), link_trailer_bytes - trailer_size_);
  std::memcpy(trailer_.data() + trailer_size_, in.data(), n);
  trailer_size_ += n;
  if (trailer_size_ == link_trailer_bytes) end_payload();
  return n;
}

void link_parser::end_payload() {
  intact_ = !dropped_ && (header_.in_place || !header_.has_trailer() || sealed() == digest_.value());
  target_.clear();
  state_ = state::frame;
}

void link_parser::next() {
  if (state_ != state::frame) throw std::logic_error("link_parser: no whole frame");
  head_size_ = 0;
  state_ = state::header;
}

void link_parser::fail(error_code ec) {
  error_ = ec;
  state_ = state::failed;
}

}  // namespace cokv::detail

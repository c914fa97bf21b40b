#include "store/file_pieces.hpp"

#include <algorithm>
#include <cstring>

#include "store/log_entry.hpp"

namespace cokv::detail {
namespace {

constexpr auto page = log_page;

std::uint64_t down(std::uint64_t n) { return n / page * page; }
std::uint64_t up(std::uint64_t n) { return down(n + page - 1); }

// A direct file is used in whole pages, whatever less it would take.
bool straight(const file_alignment& to, std::uint64_t offset, const std::byte* memory) {
  return offset % page == 0 && reinterpret_cast<std::uintptr_t>(memory) % to.memory == 0;
}

// All pieces lie behind each other, in the file and as the file wants its memory.
template <class Buffers>
bool straight_run(const file_alignment& to, std::uint64_t offset, std::uint64_t stride, const Buffers& pieces) {
  for (const auto& p : pieces) {
    if (p.size() != stride) return false;
    if (to.offset != 1 && (stride % page != 0 || !straight(to, offset, static_cast<const std::byte*>(p.data()))))
      return false;
  }
  return true;
}

// How many of them a piece of staging holds, wherever they begin.
std::size_t staged_at_once(std::uint64_t stride) {
  return static_cast<std::size_t>((staging_pieces::piece_bytes - 2 * page) / stride);
}

auto as_tuple() { return asio::as_tuple(asio::deferred); }

}  // namespace

staging_pieces::piece::piece(staging_pieces& from, std::size_t bytes) : from_(from) {
  if (bytes < piece_bytes) {
    memory_ = buffer::host(bytes, page);
  } else if (from.free_.empty()) {
    memory_ = buffer::host(piece_bytes, page);
  } else {
    memory_ = std::move(from.free_.back());
    from.free_.pop_back();
  }
}

staging_pieces::piece::~piece() {
  if (memory_.size() == piece_bytes && from_.free_.size() < from_.kept_) from_.free_.push_back(std::move(memory_));
}

awaitable<std::tuple<error_code, std::size_t>> read_whole(file& f, staging_pieces& staging, std::uint64_t offset,
                                                          std::span<std::byte> into) {
  const auto to = f.alignment();
  if (to.offset == 1) co_return co_await f.async_read_at(offset, asio::buffer(into.data(), into.size()), as_tuple());
  std::size_t done = 0;
  if (straight(to, offset, into.data()) && into.size() >= page) {
    const auto whole = static_cast<std::size_t>(down(into.size()));
    auto [ec, n] = co_await f.async_read_at(offset, asio::buffer(into.data(), whole), as_tuple());
    if (ec || n < whole) co_return std::tuple(ec, n);
    done = n;
  }
  if (done == into.size()) co_return std::tuple(error_code(), done);
  staging_pieces::piece piece(staging, static_cast<std::size_t>(up(offset + into.size()) - down(offset + done)));
  while (done < into.size()) {
    const auto at = offset + done, begin = down(at);
    const auto bytes = piece.bytes().first(
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.bytes().size(), up(offset + into.size()) - begin)));
    auto [ec, n] = co_await f.async_read_at(begin, asio::buffer(bytes.data(), bytes.size()), as_tuple());
    const auto before = static_cast<std::size_t>(at - begin),
               came = std::min(n - std::min(n, before), into.size() - done);
    std::memcpy(into.data() + done, bytes.data() + before, came);
    done += came;
    if (ec || n < bytes.size()) co_return std::tuple(ec, done);
  }
  co_return std::tuple(error_code(), done);
}

awaitable<error_code> write_whole(file& f, staging_pieces& staging, std::uint64_t offset,
                                  std::span<const std::byte> from, std::uint64_t padded) {
  const auto to = f.alignment();
  const auto whole = from.size() / padded * padded;
  std::size_t done = 0;
  if ((to.offset == 1 || straight(to, offset, from.data())) && whole != 0) {
    auto [ec, n] = co_await f.async_write_at(offset, asio::buffer(from.data(), whole), as_tuple());
    if (ec) co_return ec;
    done = n;
  }
  if (done == from.size()) co_return error_code();
  staging_pieces::piece piece(staging, static_cast<std::size_t>(up(from.size() - done)));
  while (done < from.size()) {
    const auto n = std::min(piece.bytes().size(), from.size() - done);
    const auto bytes = piece.bytes().first(static_cast<std::size_t>(up(n)));
    std::memcpy(bytes.data(), from.data() + done, n);
    std::memset(bytes.data() + n, 0, bytes.size() - n);
    auto [ec, written] = co_await f.async_write_at(offset + done, asio::buffer(bytes.data(), bytes.size()), as_tuple());
    if (ec) co_return ec;
    done += n;
  }
  co_return error_code();
}

awaitable<std::tuple<error_code, std::size_t>> read_run(file& f, staging_pieces& staging, std::uint64_t offset,
                                                        std::uint64_t stride, std::vector<asio::mutable_buffer> into) {
  auto whole = [](error_code ec, std::size_t n) { return std::tuple(ec, n); };
  if (into.size() > 1 && straight_run(f.alignment(), offset, stride, into)) {
    auto [ec, n] = co_await f.async_read_at(offset, std::move(into), as_tuple());
    co_return whole(ec, static_cast<std::size_t>(n / stride));
  }
  const auto at_once = staged_at_once(stride);
  if (into.size() == 1 || at_once < 2) {
    for (std::size_t i = 0; i < into.size(); ++i) {
      const std::span part(static_cast<std::byte*>(into[i].data()), into[i].size());
      auto [ec, n] = co_await read_whole(f, staging, offset + i * stride, part);
      if (ec || n < part.size()) co_return whole(ec, i);
    }
    co_return whole(error_code(), into.size());
  }
  for (std::size_t first = 0; first < into.size();) {
    const auto count = std::min(at_once, into.size() - first);
    const auto at = offset + first * stride, begin = down(at);
    staging_pieces::piece piece(staging, static_cast<std::size_t>(up(at + count * stride) - begin));
    const auto bytes = piece.bytes().first(static_cast<std::size_t>(up(at + count * stride) - begin));
    auto [ec, n] = co_await f.async_read_at(begin, asio::buffer(bytes.data(), bytes.size()), as_tuple());
    if (ec) co_return whole(ec, first);
    for (std::size_t i = 0; i < count; ++i, ++first) {
      const auto from = static_cast<std::size_t>(at - begin + i * stride);
      if (from + into[first].size() > n) co_return whole(error_code(), first);
      std::memcpy(into[first].data(), bytes.data() + from, into[first].size());
    }
  }
  co_return whole(error_code(), into.size());
}

awaitable<error_code> write_run(file& f, staging_pieces& staging, std::uint64_t offset, std::uint64_t stride,
                                std::vector<asio::const_buffer> from, std::uint64_t padded) {
  if (from.size() > 1 && straight_run(f.alignment(), offset, stride, from)) {
    auto [ec, n] = co_await f.async_write_at(offset, std::move(from), as_tuple());
    co_return ec;
  }
  const auto at_once = staged_at_once(stride);
  if (from.size() == 1 || at_once < 2) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const std::span part(static_cast<const std::byte*>(from[i].data()), from[i].size());
      if (auto ec = co_await write_whole(f, staging, offset + i * stride, part, padded)) co_return ec;
    }
    co_return error_code();
  }
  for (std::size_t first = 0; first < from.size();) {
    const auto count = std::min(at_once, from.size() - first);
    staging_pieces::piece piece(staging, static_cast<std::size_t>(count * stride));
    const auto bytes = piece.bytes().first(static_cast<std::size_t>(count * stride));
    const auto at = offset + first * stride;
    for (std::size_t i = 0; i < count; ++i, ++first) {
      auto* to = bytes.data() + i * stride;
      std::memcpy(to, from[first].data(), from[first].size());
      std::memset(to + from[first].size(), 0, static_cast<std::size_t>(stride) - from[first].size());
    }
    auto [ec, n] = co_await f.async_write_at(at, asio::buffer(bytes.data(), bytes.size()), as_tuple());
    if (ec) co_return ec;
  }
  co_return error_code();
}

}  // namespace cokv::detail

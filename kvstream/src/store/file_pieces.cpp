#include "store/file_pieces.hpp"

#include <algorithm>
#include <cstring>

#include "store/block_file.hpp"

namespace cokv::detail {
namespace {

constexpr auto page = block_file_page;

std::uint64_t down(std::uint64_t n) { return n / page * page; }
std::uint64_t up(std::uint64_t n) { return down(n + page - 1); }

// A direct file is used in whole pages, whatever less it would take.
bool straight(const file_alignment& to, std::uint64_t offset, const std::byte* memory) {
  return offset % page == 0 && reinterpret_cast<std::uintptr_t>(memory) % to.memory == 0;
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

}  // namespace cokv::detail

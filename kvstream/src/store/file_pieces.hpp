// Whole transfers on a file of any alignment. What lies as the file wants it goes straight between disk and memory; the
// rest, an odd address or the end of a segment, goes through a piece of memory that does.
#pragma once

#include <span>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/file.hpp"

namespace cokv::detail {

// Memory that the next transfer takes again; as many pieces are kept as transfers may go on at a time.
class staging_pieces {
 public:
  static constexpr std::size_t piece_bytes = std::size_t{1} << 20;

  explicit staging_pieces(std::size_t kept) : kept_(kept) { free_.reserve(kept); }

  // A piece, or less where less will do.
  class piece {
   public:
    piece(staging_pieces& from, std::size_t bytes);
    piece(const piece&) = delete;
    piece& operator=(const piece&) = delete;
    ~piece();
    std::span<std::byte> bytes() const noexcept { return memory_.bytes(); }

   private:
    staging_pieces& from_;
    buffer memory_;
  };

 private:
  std::size_t kept_;
  std::vector<buffer> free_;
};

// The bytes there are, fewer at the end of the file. `staging` must be there until the end, as the memory.
awaitable<std::tuple<error_code, std::size_t>> read_whole(file& f, staging_pieces& staging, std::uint64_t offset,
                                                          std::span<std::byte> into);
// And zeros up to a multiple of `padded` (1 or log_page), where `offset` is one.
awaitable<error_code> write_whole(file& f, staging_pieces& staging, std::uint64_t offset,
                                  std::span<const std::byte> from, std::uint64_t padded);

// Pieces of one size, each beginning `stride` bytes behind the one before: one operation where memory lies as the file
// wants it, else as few as staging allows. Reads give whole pieces.
awaitable<std::tuple<error_code, std::size_t>> read_run(file& f, staging_pieces& staging, std::uint64_t offset,
                                                        std::uint64_t stride, std::vector<asio::mutable_buffer> into);
awaitable<error_code> write_run(file& f, staging_pieces& staging, std::uint64_t offset, std::uint64_t stride,
                                std::vector<asio::const_buffer> from, std::uint64_t padded);

}  // namespace cokv::detail

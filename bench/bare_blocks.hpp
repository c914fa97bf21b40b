// The loop that one would write by hand to keep blocks in files: layer by layer into files under temporary names, then
// what stands before the data, a sync and a name for each. By calls that block, or in a ring of so many at a time.
#pragma once

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cokv/runtime/buffer.hpp"
#include "two_workers.hpp"

namespace cokv::bench {

class bare_blocks {
 public:
  static constexpr std::size_t head = 4096;

  // Segments of one size, one after the other in each block's file.
  bare_blocks(std::string folder, std::size_t blocks, std::size_t layers, std::size_t segment, bool direct,
              std::size_t ring_depth)
      : folder_(std::move(folder)),
        blocks_(blocks),
        layers_(layers),
        segment_(segment),
        direct_(direct),
        depth_(ring_depth),
        heads_(buffer::host(blocks * head)) {
    std::filesystem::create_directories(folder_);
    for (auto& b : heads_.bytes()) b = std::byte{1};
    if (depth_ != 0) must(io_uring_queue_init(static_cast<unsigned>(2 * depth_), &ring_, 0) == 0, "io_uring");
  }
  ~bare_blocks() {
    if (depth_ != 0) io_uring_queue_exit(&ring_);
    std::filesystem::remove_all(folder_);
  }
  bare_blocks(const bare_blocks&) = delete;
  bare_blocks& operator=(const bare_blocks&) = delete;

  // Segments one after the other, as the layers come: all blocks' of the first, all of the second.
  void write(const buffer& from) {
    const auto files = open_all(".part", O_RDWR | O_CREAT | O_TRUNC);
    for (std::size_t layer = 0; layer < layers_; ++layer)
      each(files, true, [&](std::size_t i) { return segment_of(from, layer, i); }, head + layer * segment_);
    each(files, true, [&](std::size_t i) { return heads_.slice(i * head, head); }, 0);
    for (int f : files) must(::fdatasync(f) == 0 && ::close(f) == 0, "fdatasync");
    for (std::size_t i = 0; i < blocks_; ++i)
      must(std::rename(path(i, ".part").c_str(), path(i, ".kv").c_str()) == 0, "rename");
    const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(::fsync(folder) == 0 && ::close(folder) == 0, "fsync");
  }

  void read(const buffer& into) {
    const auto files = open_all(".kv", O_RDONLY);
    each(files, false, [&](std::size_t i) { return heads_.slice(i * head, head); }, 0);
    for (std::size_t layer = 0; layer < layers_; ++layer)
      each(files, false, [&](std::size_t i) { return segment_of(into, layer, i); }, head + layer * segment_);
    for (int f : files) ::close(f);
  }

  void remove() {
    for (std::size_t i = 0; i < blocks_; ++i) std::filesystem::remove(path(i, ".kv"));
  }

 private:
  std::string path(std::size_t i, const char* end) const { return folder_ + "/" + std::to_string(i) + end; }
  buffer segment_of(const buffer& memory, std::size_t layer, std::size_t i) const {
    return memory.slice((layer * blocks_ + i) * segment_, segment_);
  }

  std::vector<int> open_all(const char* end, int flags) const {
    std::vector<int> out;
    for (std::size_t i = 0; i < blocks_; ++i) {
      out.push_back(::open(path(i, end).c_str(), flags | O_CLOEXEC | (direct_ ? O_DIRECT : 0), 0600));
      must(out.back() >= 0, "open");
    }
    return out;
  }

  // The same place of every file.
  template <class F>
  void each(const std::vector<int>& files, bool writing, F memory, std::size_t offset) {
    if (depth_ == 0) {
      for (std::size_t i = 0; i < files.size(); ++i) {
        const auto m = memory(i);
        const auto at = static_cast<off_t>(offset);
        const auto n = writing ? ::pwrite(files[i], m.data(), m.size(), at) : ::pread(files[i], m.data(), m.size(), at);
        must(n == static_cast<ssize_t>(m.size()), "pread or pwrite");
      }
      return;
    }
    std::size_t begun = 0, under_way = 0;
    while (begun < files.size() || under_way > 0) {
      for (; begun < files.size() && under_way < depth_; ++begun, ++under_way) {
        const auto m = memory(begun);
        auto* e = io_uring_get_sqe(&ring_);
        const auto n = static_cast<unsigned>(m.size());
        if (writing)
          io_uring_prep_write(e, files[begun], m.data(), n, offset);
        else
          io_uring_prep_read(e, files[begun], m.data(), n, offset);
        io_uring_sqe_set_data64(e, n);
      }
      must(io_uring_submit_and_wait(&ring_, 1) >= 0, "io_uring");
      for (io_uring_cqe* c = nullptr; io_uring_peek_cqe(&ring_, &c) == 0; --under_way) {
        must(c->res == static_cast<int>(io_uring_cqe_get_data64(c)), "a read or write in the ring");
        io_uring_cqe_seen(&ring_, c);
      }
    }
  }

  std::string folder_;
  std::size_t blocks_, layers_, segment_;
  bool direct_;
  std::size_t depth_;
  buffer heads_;
  io_uring ring_{};
};

}  // namespace cokv::bench

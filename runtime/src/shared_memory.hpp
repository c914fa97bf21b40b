// Host memory that other processes map: a memfd, sealed so that none of them can shrink it under the others.
#pragma once

#include <functional>
#include <memory>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/memory_handle.hpp"

namespace cokv::detail {

// A mapping, and what frees it besides: a device that registered it.
class shared_mapping {
 public:
  // `reserved`: its pages come when they are touched.
  static result<std::shared_ptr<shared_mapping>> make(std::size_t bytes, bool reserved = false);
  // Refuses what is smaller than it says, not sealed, or no memfd at all: reading beyond its end would kill the process.
  static result<std::shared_ptr<shared_mapping>> map(const memory_handle& handle);
  ~shared_mapping();
  shared_mapping(const shared_mapping&) = delete;

  void* data() const noexcept { return data_; }
  std::size_t mapped_bytes() const noexcept { return mapped_; }
  const std::shared_ptr<const int>& file() const noexcept { return file_; }

  // Called before the mapping goes.
  // Called when it goes, with what unmaps it: to be called then, or later.
  void before_unmap(std::function<void(void*, std::function<void()> unmap)> f) { before_unmap_ = std::move(f); }

 private:
  shared_mapping(void* data, std::size_t mapped, std::shared_ptr<const int> file)
      : data_(data), mapped_(mapped), file_(std::move(file)) {}
  static result<std::shared_ptr<shared_mapping>> map_whole(std::shared_ptr<const int> file, std::size_t bytes);

  void* data_;
  std::size_t mapped_;
  std::shared_ptr<const int> file_;
  std::function<void(void*, std::function<void()>)> before_unmap_;
};

// [offset, offset + bytes) of it; the range is checked.
result<buffer> shared_buffer(std::shared_ptr<shared_mapping> mapping, std::size_t offset, std::size_t bytes);

}  // namespace cokv::detail

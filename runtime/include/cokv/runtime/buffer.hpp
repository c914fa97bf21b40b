// A handle to memory, reference-counted: a slice owns the whole allocation with it, and an operation in flight holds
// its buffers until the last writer is done. The only way memory reaches a transfer.
//
//     auto block = cokv::buffer::host(1 << 20);
//     auto half = block.slice(0, block.size() / 2);
//     auto mapped = cokv::buffer::adopt(map->data(), map->size(), cokv::memory_kind::host, map);
//
// Handles are thread-safe as a shared_ptr is; the bytes are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cokv {

enum class memory_kind : std::uint8_t {
  host,        // pageable
  pinned,      // host memory that a device copies from without staging
  device,      // a device's own
  shared,      // host memory that other processes map
  exportable,  // device memory that other processes map
};

class buffer {
 public:
  buffer() = default;

  // Uninitialised host memory. align is a power of two. Throws std::bad_alloc.
  static buffer host(std::size_t bytes, std::size_t align = 4096);

  // Cleared host memory that the system gives page by page as it is touched first, in huge pages where it likes to; not in
  // core dumps. A child process gets it as any memory. Throws std::bad_alloc.
  static buffer reserve(std::size_t bytes);

  // Memory that keep_alive owns.
  static buffer adopt(void* data, std::size_t bytes, memory_kind kind, std::shared_ptr<void> keep_alive) {
    return buffer(static_cast<std::byte*>(data), bytes, kind,
                  kind <= memory_kind::pinned || kind == memory_kind::shared, std::move(keep_alive));
  }
  // The same, for a device whose own memory the host reads and writes too.
  static buffer adopt(void* data, std::size_t bytes, memory_kind kind, std::shared_ptr<void> keep_alive,
                      bool host_accessible) {
    return buffer(static_cast<std::byte*>(data), bytes, kind, host_accessible, std::move(keep_alive));
  }

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  memory_kind kind() const noexcept { return kind_; }
  bool host_accessible() const noexcept { return host_accessible_; }
  std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

  // n bytes from offset, sharing the memory. Throws std::out_of_range beyond the end.
  buffer slice(std::size_t offset, std::size_t n) const;

  // Both own the same memory, whichever part of it they are.
  bool shares_memory_with(const buffer& other) const noexcept {
    return !owner_.owner_before(other.owner_) && !other.owner_.owner_before(owner_);
  }

  // How many handles share the memory; for tests and for pools that wait for the last one.
  long use_count() const noexcept { return owner_.use_count(); }

 private:
  buffer(std::byte* data, std::size_t size, memory_kind kind, bool host_accessible,
         std::shared_ptr<void> owner) noexcept
      : data_(data), size_(size), kind_(kind), host_accessible_(host_accessible), owner_(std::move(owner)) {}

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  memory_kind kind_ = memory_kind::host;
  bool host_accessible_ = true;
  std::shared_ptr<void> owner_;
};

// One copy of a batch.
struct copy_op {
  buffer dst;
  buffer src;

  bool overlaps() const noexcept {
    const auto to = reinterpret_cast<std::uintptr_t>(dst.data()), from = reinterpret_cast<std::uintptr_t>(src.data());
    return !dst.empty() && !src.empty() && to < from + src.size() && from < to + dst.size();
  }
};

}  // namespace cokv

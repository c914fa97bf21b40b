#include "cokv/runtime/buffer.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

using cokv::buffer;
using cokv::memory_kind;

TEST_CASE("buffer: host memory is aligned, sized, and empty by default") {
  for (std::size_t align : {64, 4096, 65536}) {
    auto b = buffer::host(1000, align);
    CHECK(b.size() == 1000);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % align == 0);
    CHECK(b.kind() == memory_kind::host);
    CHECK(b.host_accessible());
  }
  CHECK(buffer().empty());
  CHECK(buffer::host(0).empty());
  CHECK(buffer::reserve(0).empty());
}

TEST_CASE("buffer: a slice keeps the whole allocation alive and can't leave it") {
  auto owner = std::make_shared<std::vector<std::byte>>(100);
  std::weak_ptr<void> watch = owner;
  auto* data = owner->data();
  auto whole = buffer::adopt(data, 100, memory_kind::shared, std::move(owner));
  auto part = whole.slice(10, 20).slice(5, 15);
  whole = {};
  CHECK(!watch.expired());
  CHECK(part.data() == data + 15);
  CHECK(part.size() == 15);
  CHECK(part.kind() == memory_kind::shared);
  CHECK_THROWS_AS((void)part.slice(10, 6), std::out_of_range);
  CHECK_THROWS_AS((void)part.slice(16, 0), std::out_of_range);
  CHECK_THROWS_AS((void)part.slice(1, ~std::size_t{0}), std::out_of_range);
  CHECK(part.slice(15, 0).empty());
  CHECK(part.shares_memory_with(part.slice(3, 2)));
  CHECK(!part.shares_memory_with(buffer::host(10)));
  CHECK(!part.shares_memory_with({}));
  part = {};
  CHECK(watch.expired());
}

TEST_CASE("buffer: device memory is not the host's unless its device says so") {
  CHECK(!buffer::adopt(nullptr, 0, memory_kind::device, nullptr).host_accessible());
  CHECK(!buffer::adopt(nullptr, 0, memory_kind::exportable, nullptr).host_accessible());
  CHECK(buffer::adopt(nullptr, 0, memory_kind::pinned, nullptr).host_accessible());
  CHECK(buffer::adopt(nullptr, 0, memory_kind::device, nullptr, true).host_accessible());
}

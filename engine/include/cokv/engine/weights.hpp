// A checkpoint's tensors, mapped and not read: model.safetensors, or the shards that model.safetensors.index.json
// lists. Everything a file claims is checked against its real size before it is believed, so a view is always inside
// its file.
//
//     cokv::weights tensors = cokv::weights::open("models/tiny-kjv");
//     cokv::tensor_view norm = tensors.expect("model.norm.weight", {config.hidden});
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cokv/kvstream/dtype.hpp"

namespace cokv {

// Row-major, packed, at any address: older files are not aligned. Points into the mapping: valid while some copy of the `weights` (or
// its keep_alive()) lives.
struct tensor_view {
  dtype type = dtype::f32;
  std::vector<std::uint64_t> shape;  // empty: a scalar
  std::span<const std::byte> bytes;

  std::uint64_t elements() const noexcept { return bytes.size() / size_of(type); }
};

std::string shape_text(std::span<const std::uint64_t> shape);  // "[2048, 256]"

// A cheap handle; copies share the mappings. Immutable after open, so any thread may read. A file must not be truncated
// while it is mapped: the system answers a read beyond its new end with SIGBUS.
class weights {
 public:
  // Throws config_error naming the file and the tensor or field.
  static weights open(const std::filesystem::path& dir);
  static weights open_file(const std::filesystem::path& safetensors);

  const std::filesystem::path& path() const noexcept;  // the file, or the index of its shards
  bool contains(std::string_view name) const;
  // All of F32, F16 or BF16. A file may have others beside them, which nobody can take.
  const std::map<std::string, tensor_view, std::less<>>& tensors() const noexcept;
  std::uint64_t bytes() const noexcept;  // of all tensors

  // The tensor of this name and shape, or a config_error that names the tensor, the shape expected and the shape found.
  const tensor_view& expect(std::string_view name, std::initializer_list<std::uint64_t> shape) const;

  // Holds the mappings, for a buffer that adopts part of one.
  std::shared_ptr<const void> keep_alive() const noexcept;

 private:
  struct state;
  explicit weights(std::shared_ptr<const state> s) : state_(std::move(s)) {}
  std::shared_ptr<const state> state_;
};

}  // namespace cokv

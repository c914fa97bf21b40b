// Random numbers in the shapes that a family asks for: what a model costs does not depend on what it has learned. Matrices
// share memory, so a model takes no more of it than its largest tensor before it is packed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cokv/engine/model_config.hpp"
#include "model/tensor_source.hpp"

namespace cokv {

class random_source final : public tensor_source {
 public:
  // Of type bf16, f16 or f32; the same seed gives the same tensors.
  random_source(dtype type, std::uint64_t seed) : type_(type), seed_(seed) {}

  // Matrices: magnitudes between 2^-6 and 2^-5 of either sign. Vectors: ones, biases zeros.
  tensor_view tensor(const std::string& name, std::initializer_list<std::uint64_t> shape) override;
  bool contains(std::string_view) const override { return false; }  // nothing before it is asked for
  std::string place(const std::string& name) const override { return name + ": "; }

  // No more than this is taken for a model's matrices before they are packed.
  static std::uint64_t bytes_for(const model_config& c, dtype type) noexcept;

  // Holds the memory that views point into.
  std::shared_ptr<const void> keep_alive() const noexcept { return memory_; }

 private:
  using block = std::vector<std::byte>;
  const std::byte* numbers(std::size_t bytes);

  dtype type_;
  std::uint64_t seed_;
  std::shared_ptr<std::vector<std::unique_ptr<block>>> memory_ =
      std::make_shared<std::vector<std::unique_ptr<block>>>();
  const block* largest_ = nullptr;
};

}  // namespace cokv

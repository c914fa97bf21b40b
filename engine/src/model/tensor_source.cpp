#include "model/tensor_source.hpp"

#include <algorithm>

#include "cokv/runtime/detail/json_file.hpp"
#include "kernel/cpu/convert.hpp"

namespace cokv {
kernel::matrix_rows all_rows(const tensor_view& t) {
  return {t.bytes.data(), t.type, static_cast<std::size_t>(t.shape[0]), static_cast<std::size_t>(t.shape[1])};
}

std::vector<float> tensor_source::vector(const std::string& name, std::uint64_t n) {
  auto t = tensor(name, {n});
  std::vector<float> out(n);
  kernel::to_floats(t.bytes.data(), t.type, out.data(), n);
  return out;
}

linear_tensors tensor_source::linear(const std::string& name, std::uint64_t n, std::uint64_t k, bool bias) {
  return linear({{name, n}}, k, bias);
}

linear_tensors tensor_source::linear(std::initializer_list<part> parts, std::uint64_t k, bool bias) {
  linear_tensors out{.k = static_cast<std::size_t>(k)};
  for (auto& [name, n] : parts) {
    out.rows.push_back(all_rows(tensor(name + ".weight", {n, k})));
    if (!bias) continue;
    auto more = vector(name + ".bias", n);
    out.bias.insert(out.bias.end(), more.begin(), more.end());
  }
  return out;
}

linear_tensors tensor_source::transposed(const std::string& name, std::uint64_t n, std::uint64_t k) {
  auto t = tensor(name + ".weight", {k, n});
  kernel::matrix_rows columns{t.bytes.data(), t.type, static_cast<std::size_t>(n), 1, static_cast<std::size_t>(n)};
  return {.k = static_cast<std::size_t>(k), .rows = {columns}, .bias = vector(name + ".bias", n)};
}

norm_tensors tensor_source::norm(const std::string& name, std::uint64_t n, bool bias) {
  norm_tensors out{.weight = vector(name + ".weight", n)};
  if (bias) out.bias = vector(name + ".bias", n);
  return out;
}

linear_tensors tensor_source::head(bool tied, const tensor_view& embedding, const std::string& name) {
  const auto n = embedding.shape[0], k = embedding.shape[1];
  if (!tied) return linear(name, n, k);
  if (reads_all() && contains(name + ".weight")) {
    const auto own = tensor(name + ".weight", {n, k});
    if (own.type != embedding.type || !std::ranges::equal(own.bytes, embedding.bytes))
      throw config_error(place(name + ".weight") +
                         "differs from the embedding, and tie_word_embeddings says that they are the same");
  }
  return {.k = static_cast<std::size_t>(k), .rows = {all_rows(embedding)}};
}

std::string checkpoint_source::place(const std::string& name) const {
  return from_->path().string() + ": " + detail::printable(name) + ": ";
}

tensor_view checkpoint_source::tensor(const std::string& name, std::initializer_list<std::uint64_t> shape) {
  auto& t = from_->expect(name, shape);
  if (t.type != dtype::bf16 && t.type != dtype::f16 && t.type != dtype::f32)
    throw config_error(place(name) + std::string(to_string(t.type)) + " is not bf16, f16 or f32");
  taken_.push_back(name);
  return t;
}

void checkpoint_source::require_finite(const weight_scan& seen) const {
  for (auto& name : taken_) {
    const auto found = seen.find(name);
    if (found == seen.end()) continue;
    const auto i = found->second.first_not_finite;
    if (i == scanned_tensor::none) continue;
    auto& t = from_->tensors().at(name);
    float value;
    kernel::to_floats(t.bytes.data() + i * size_of(t.type), t.type, &value, 1);
    throw config_error(place(name) + "element " + std::to_string(i) + " is " +
                       (value != value ? "not a number" : "infinite"));
  }
}

}  // namespace cokv

// Where a family takes its tensors from: a checkpoint, or random numbers of the same shapes. Everything that is taken is
// of a type and shape that were asked for.
//
//     tensor_source& from = ...;
//     linear_tensors up = from.linear(prefix + "fc1", intermediate, hidden, /*bias*/ true);
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/decoder_tensors.hpp"
#include "model/weight_scan.hpp"

namespace cokv {

class tensor_source {
 public:
  virtual ~tensor_source() = default;

  // config_error naming the file and the tensor: it is missing, or of another type or shape.
  virtual tensor_view tensor(const std::string& name, std::initializer_list<std::uint64_t> shape) = 0;
  virtual bool contains(std::string_view name) const = 0;
  virtual std::string place(const std::string& name) const = 0;  // "file: name: ", for messages
  virtual bool reads_all() const { return true; }                // else others look at what needs all bytes

  std::vector<float> vector(const std::string& name, std::uint64_t n);

  // NAME.weight [n][k] and, where asked for, NAME.bias [n].
  linear_tensors linear(const std::string& name, std::uint64_t n, std::uint64_t k, bool bias = false);
  // Several of them as one: queries, keys and values; gate and up.
  using part = std::pair<std::string, std::uint64_t>;  // name, n
  linear_tensors linear(std::initializer_list<part> parts, std::uint64_t k, bool bias = false);
  // The same stored as [k][n].
  linear_tensors transposed(const std::string& name, std::uint64_t n, std::uint64_t k);

  norm_tensors norm(const std::string& name, std::uint64_t n, bool bias = false);

  // The output matrix: the embedding again where they are tied, else NAME.weight of the same shape. A checkpoint that says
  // tied and has another one beside it is refused, by who reads all: nobody can know which was meant.
  linear_tensors head(bool tied, const tensor_view& embedding, const std::string& name);
};

// All of a tensor's rows: [n][k].
kernel::matrix_rows all_rows(const tensor_view& t);

class checkpoint_source final : public tensor_source {
 public:
  explicit checkpoint_source(const weights& from, bool reads_all = true) : from_(&from), reads_all_(reads_all) {}
  tensor_view tensor(const std::string& name, std::initializer_list<std::uint64_t> shape) override;
  bool contains(std::string_view name) const override { return from_->contains(name); }
  std::string place(const std::string& name) const override;
  bool reads_all() const override { return reads_all_; }

  // config_error naming the first tensor taken that was scanned and has an element that is not finite.
  void require_finite(const weight_scan& seen) const;

 private:
  const weights* from_;
  bool reads_all_;
  std::vector<std::string> taken_;
};

}  // namespace cokv

#include "model/stage_tensors.hpp"

#include <functional>
#include <iterator>
#include <stdexcept>

#include "model/part_of.hpp"

namespace cokv {
namespace {

// By where they begin.
class file_order {
 public:
  explicit file_order(const weights& all) {
    for (auto& [name, t] : all.tensors())
      if (!t.bytes.empty()) at_.emplace(t.bytes.data(), some_tensors::value_type(name, &t));
  }

  // Throws std::logic_error where they are not in one tensor: nobody would know of what is computed with then.
  void add(const void* begin, std::size_t bytes, some_tensors& to) const {
    const auto* first = static_cast<const std::byte*>(begin);
    const auto behind = at_.upper_bound(first);
    if (behind == at_.begin()) throw std::logic_error("a matrix that is not the checkpoint's");
    const auto& found = std::prev(behind)->second;
    const auto in = static_cast<std::size_t>(first - found.second->bytes.data());
    if (in + bytes > found.second->bytes.size()) throw std::logic_error("a matrix that is in no one tensor");
    to.insert(found);
  }
  void add(const linear_tensors& of, some_tensors& to) const {
    for (auto& rows : of.rows) {
      const auto last = (rows.count - 1) * rows.row_step + (of.k - 1) * rows.column_step;
      add(rows.data, (last + 1) * size_of(rows.type), to);
    }
  }

 private:
  std::map<const std::byte*, some_tensors::value_type, std::less<>> at_;
};

}  // namespace

some_tensors tensors_of_stage(const weights& all, const decoder_tensors& bound, const model_config& whole,
                              const topology& split, std::uint32_t stage) {
  const topology one_rank(split.depth(), 1, 0, split.starts());
  const auto own = part_of(bound, whole, {.split = one_rank, .who = {.stage = stage}});
  some_tensors out;
  for (auto& [name, t] : all.tensors())
    if (t.shape.size() < 2) out.emplace(name, &t);
  const file_order order(all);
  for (auto* t : {&own.embedding, &own.positions})
    if (!t->bytes.empty()) order.add(t->bytes.data(), t->bytes.size(), out);
  for (auto* l : {&own.project_in, &own.project_out, &own.head}) order.add(*l, out);
  for (auto& l : own.layers)
    for (auto* one : {&l.qkv, &l.out, &l.up, &l.down}) order.add(*one, out);
  return out;
}

}  // namespace cokv

#include "loop.hpp"

#include "cokv/runtime/detail/json_file.hpp"

namespace cokv::chat {

loop_state::loop_state(stream* over, std::optional<std::int64_t> sized, budget& b)
    : budget_(b), over_(over), length_(sized), depth_(over_->depth + 1) {}

std::optional<value> loop_state::next() {
  budget_.step();
  auto out = after_ ? std::exchange(after_, std::nullopt) : over_->next(budget_);
  if (!out) return std::nullopt;
  ++index0_;
  before_ = std::exchange(current_, out);
  return out;
}

const std::optional<value>& loop_state::peek() {
  if (!after_) after_ = over_->next(budget_);
  return after_;
}

std::int64_t loop_state::length() {
  if (length_) return *length_;
  std::vector<value> rest;
  while (auto v = over_->next(budget_)) {
    budget_.step();
    rest.push_back(std::move(*v));
  }
  length_ = static_cast<std::int64_t>(rest.size()) + index0_ + 1 + (after_ ? 1 : 0);
  auto again = [all = std::move(rest), i = std::size_t{0}]() mutable -> std::optional<value> {
    if (i >= all.size()) return std::nullopt;
    return all[i++];
  };
  over_ = budget_.keep(stream{std::move(again), over_->depth});
  return *length_;
}

value loop_state::attribute(std::string_view name) {
  if (name == "index") return value(index0_ + 1);
  if (name == "index0") return value(index0_);
  if (name == "first") return value(index0_ == 0);
  if (name == "last") return value(!peek());
  if (name == "length") return value(length());
  if (name == "revindex") return value(length() - index0_);
  if (name == "revindex0") return value(length() - index0_ - 1);
  if (name == "depth") return value(std::int64_t{1});
  if (name == "depth0") return value(std::int64_t{0});
  if (name == "previtem") return before_ ? *before_ : make_undefined("there is no previous item", budget_);
  if (name == "nextitem") {
    auto& v = peek();
    return v ? *v : make_undefined("there is no next item", budget_);
  }
  if (name == "changed") fail("loop.changed is not supported");
  return make_undefined("'LoopContext' object has no attribute '" + detail::printable(name) + "'", budget_);
}

}  // namespace cokv::chat

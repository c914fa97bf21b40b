// The variable `loop` of a for loop, and what the loop goes over. As in Jinja it looks one element ahead where it has
// to, and reads all of them where a length is asked for of what has none.
#pragma once

#include "value.hpp"

namespace cokv::chat {

struct loop_state {
  // `sized`: the elements that a length is known of.
  loop_state(stream* over, std::optional<std::int64_t> sized, budget& b);

  std::optional<value> next();
  value attribute(std::string_view name);
  std::int64_t length();
  std::uint32_t depth() const noexcept { return depth_; }
  std::int64_t index0() const noexcept { return index0_; }

 private:
  const std::optional<value>& peek();

  budget& budget_;
  stream* over_;
  std::optional<std::int64_t> length_;
  std::optional<value> after_, current_, before_;
  std::int64_t index0_ = -1;
  std::uint32_t depth_;
};

}  // namespace cokv::chat

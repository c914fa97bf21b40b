#include "cokv/engine/stop_matcher.hpp"

#include <algorithm>

namespace cokv {

stop_matcher::stop_matcher(stop_options options) : eos_(std::move(options.eos)), left_(options.max_tokens) {
  for (auto& text : options.stop) {
    if (text.empty()) continue;
    pattern p{.text = std::move(text)};
    p.fail.assign(p.text.size() + 1, 0);
    for (std::uint32_t i = 1, k = 0; i < p.text.size(); ++i) {
      while (k > 0 && p.text[i] != p.text[k]) k = p.fail[k];
      if (p.text[i] == p.text[k]) ++k;
      p.fail[i + 1] = k;
    }
    patterns_.push_back(std::move(p));
  }
}

bool stop_matcher::feed(std::string_view text, std::string& out) {
  if (patterns_.empty()) {
    out.append(text);
    return false;
  }
  for (char c : text) {
    held_.push_back(c);
    std::size_t complete = 0, partial = 0;
    for (auto& p : patterns_) {
      while (p.matched > 0 && p.text[p.matched] != c) p.matched = p.fail[p.matched];
      if (p.text[p.matched] == c) ++p.matched;
      partial = std::max<std::size_t>(partial, p.matched);
      if (p.matched == p.text.size()) complete = std::max(complete, p.text.size());
    }
    if (complete > 0) {
      out.append(held_, 0, held_.size() - complete);
      held_.clear();
      ended_ = true;
      return true;
    }
    // Only the longest partial match can still be part of a stop string.
    auto safe = held_.size() - partial;
    out.append(held_, 0, safe);
    held_.erase(0, safe);
  }
  return false;
}

stop_matcher::step stop_matcher::push(token_id id, std::string_view text) {
  step out;
  if (ended_) return out;
  if (left_ > 0) --left_;
  if (std::find(eos_.begin(), eos_.end(), id) != eos_.end()) {
    out.reason = finish_reason::stop;
  } else if (feed(text, out.text)) {
    out.reason = finish_reason::stop;
  } else if (left_ == 0) {
    out.reason = finish_reason::length;
  }
  return out;
}

stop_matcher::step stop_matcher::finish(std::string_view tail) {
  step out;
  if (ended_) return out;
  if (feed(tail, out.text)) {
    out.reason = finish_reason::stop;
    return out;
  }
  out.text += held_;
  held_.clear();
  ended_ = true;
  return out;
}

}  // namespace cokv

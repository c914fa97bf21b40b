#include "cokv/engine/detokenizer.hpp"

#include "utf8.hpp"

namespace cokv {
namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

void utf8_repair::push(std::string_view bytes, std::string& out) {
  if (bytes.empty()) return;
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  while (!bytes.empty()) {
    auto valid = detail::utf8_valid_prefix(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    auto step = detail::utf8_first(bytes);
    if (step.kind == detail::utf8_kind::partial) {
      held_ = bytes;
      return;
    }
    out += replacement;
    bytes.remove_prefix(step.length);
  }
}

void utf8_repair::finish(std::string& out) {
  if (!held_.empty()) out += replacement;
  held_.clear();
}

std::string detokenizer::push(token_id id) {
  std::string out;
  if (!(skip_special_ && tokens_->is_special(id))) repair_.push(tokens_->token_bytes(id), out);
  return out;
}

std::string detokenizer::finish() {
  std::string out;
  repair_.finish(out);
  return out;
}

}  // namespace cokv

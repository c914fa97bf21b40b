// Turns a stream of tokens into a stream of text that never ends inside a UTF-8 sequence. What push and finish
// returned, put together, is what tokenizer::decode gives for all tokens at once.
//
//     cokv::detokenizer text(tokenizer);
//     for (auto id : tokens) send(text.push(id));
//     send(text.finish());
#pragma once

#include <string>
#include <string_view>

#include "cokv/engine/token.hpp"
#include "cokv/engine/tokenizer.hpp"

namespace cokv {

// A streaming repair of UTF-8: complete sequences pass, an incomplete one waits for its rest (at most 3 bytes are
// held), each maximal broken part becomes U+FFFD.
class utf8_repair {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);  // an unfinished sequence becomes U+FFFD

 private:
  std::string held_;
};

// Refers to the tokenizer, which must outlive it.
class detokenizer {
 public:
  explicit detokenizer(const tokenizer& tokens, bool skip_special = true)
      : tokens_(&tokens), skip_special_(skip_special) {}

  std::string push(token_id id);
  std::string finish();

 private:
  const tokenizer* tokens_;
  utf8_repair repair_;
  bool skip_special_;
};

}  // namespace cokv

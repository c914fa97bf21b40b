// Decides when an answer ends: an end token, a stop string in its text, or its number of tokens. Text that could still
// become a stop string is held back, so a client never sees part of one.
//
//     cokv::stop_matcher stop({.eos = config.eos, .stop = {"\n\n"}, .max_tokens = 64});
//     auto step = stop.push(id, detokenizer.push(id));
//     send(step.text);
//     if (step.reason != cokv::finish_reason::none) send(stop.finish(detokenizer.finish()).text);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/engine/token.hpp"

namespace cokv {

enum class finish_reason : std::uint8_t {
  none,    // goes on
  stop,    // an end token or a stop string
  length,  // max_tokens, or the longest sequence that the model or the KV pool allows
};

struct stop_options {
  std::vector<token_id> eos;
  std::vector<std::string> stop;  // empty strings are left out
  std::uint32_t max_tokens = 16;  // the answer's tokens, an end token included
};

// Which stop string wins does not depend on how the text was cut into pieces: the one that is complete first, and of
// several that end at the same byte the longest. The text before it is delivered, itself it is not.
class stop_matcher {
 public:
  struct step {
    std::string text;  // to deliver now
    finish_reason reason = finish_reason::none;
  };

  explicit stop_matcher(stop_options options);

  // One generated token and the text it completed. The text of an end token is not delivered. After a reason other than
  // none, finish() is next.
  step push(token_id id, std::string_view text);

  // The answer ended, here or from outside; `tail` is the detokenizer's last text. Delivers what was held back, up to a
  // stop string that `tail` completes (reason stop, else none); nothing after a stop string was found.
  step finish(std::string_view tail = {});

 private:
  struct pattern {
    std::string text;
    std::vector<std::uint32_t> fail;  // length of the longest border of each prefix
    std::uint32_t matched = 0;
  };
  bool feed(std::string_view text, std::string& out);  // true: a stop string is complete

  std::vector<token_id> eos_;
  std::vector<pattern> patterns_;
  std::string held_;
  std::uint32_t left_;
  bool ended_ = false;
};

}  // namespace cokv

// What the OpenAI routes need of an engine, so that they are tested without one. engine_backend.hpp is the real one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/engine/engine.hpp"
#include "cokv/engine/tokenizer.hpp"

namespace cokv::openai {

// An answer being made; destroying it cancels what is left of it.
class answer {
 public:
  virtual ~answer() = default;
  virtual awaitable<result<generated>> next() = 0;  // eof after the last token
  virtual const generation_report& report() const = 0;
};

class backend {
 public:
  virtual ~backend() = default;
  virtual std::vector<token_id> encode(std::string_view text, encode_options how) const = 0;
  virtual std::uint32_t context() const = 0;     // prompt and answer together
  virtual std::uint32_t vocabulary() const = 0;  // token ids are below this
  virtual std::string token_bytes(token_id id) const = 0;
  virtual result<std::unique_ptr<answer>> submit(generation_request request) = 0;
  // The same, of an answer by whose name another process may have begun it: the same request, then.
  virtual result<std::unique_ptr<answer>> submit_named(generation_request request, std::string name) {
    return submit(std::move(request));
  }
};

}  // namespace cokv::openai

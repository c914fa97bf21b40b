// The engine behind the OpenAI routes.
#pragma once

#include "openai/backend.hpp"

namespace cokv::openai {

std::unique_ptr<answer> answer_of(generation g);

// Both outlive it and its answers.
class engine_backend final : public backend {
 public:
  engine_backend(engine& e, const tokenizer& text) : engine_(e), text_(text) {}

  std::vector<token_id> encode(std::string_view text, encode_options how) const override;
  std::uint32_t context() const override;
  std::uint32_t vocabulary() const override;
  std::string token_bytes(token_id id) const override { return std::string(text_.token_bytes(id)); }
  result<std::unique_ptr<answer>> submit(generation_request request) override;

 private:
  engine& engine_;
  const tokenizer& text_;
};

}  // namespace cokv::openai

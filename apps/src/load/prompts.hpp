// The bodies of requests under load: prompts of so many tokens, some of which begin alike.
//
//     prompt_maker make({.model = "tiny-kjv", .seed = 1});
//     std::string body = make.body(item, i);                       // of POST make.target()
//
// As token ids a prompt has exactly so many tokens (servers whose /v1/completions takes lists of ids). As text it has so many
// words, all of them short and frequent, each about a token; what it is the server counts. The same seed and number give the same
// prompt; no two numbers the same, but for what they share.
#pragma once

#include <string>

#include "load/workload.hpp"

namespace cokv::workload {

struct prompt_options {
  std::string model;
  bool chat = false;             // /v1/chat/completions
  std::uint32_t vocabulary = 0;  // token ids below it, from 3 on; 0: text
  std::uint32_t shared = 0;      // leading tokens that a group's prompts have in common,
  std::uint32_t groups = 1;      // of so many groups
  double temperature = 0;
  bool ignore_eos = false;  // answers are as long as asked for, where the server knows that member
  std::uint64_t seed = 1;
};

class prompt_maker {
 public:
  explicit prompt_maker(prompt_options o) : options_(std::move(o)) {}
  std::string body(const load_item& item, std::size_t number) const;
  std::string target() const { return options_.chat ? "/v1/chat/completions" : "/v1/completions"; }

 private:
  prompt_options options_;
};

}  // namespace cokv::workload

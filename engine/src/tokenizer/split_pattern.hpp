// A pre-tokenizer's regular expression: cuts text into its matches and what lies between them. tokenizer.json's
// patterns are Oniguruma's; where PCRE2 reads them otherwise they are translated, or refused.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace cokv::detail {

class split_pattern {
 public:
  // Throws config_error beginning with `where`.
  split_pattern(std::string_view pattern, const std::string& where);

  // What a match writes to; one a thread, and one for each level of nested use.
  class scratch {
   public:
    explicit scratch(const split_pattern& p);

   private:
    friend class split_pattern;
    struct free_match_data {
      void operator()(pcre2_real_match_data_8* p) const noexcept;
    };
    std::unique_ptr<pcre2_real_match_data_8, free_match_data> data_;
  };

  // The piece that starts at `at` in valid UTF-8; repeated calls walk through the text without gaps. `match_begin` and
  // `match_end` carry the next match between calls: start with 0 and 0.
  std::string_view next(std::string_view text, std::size_t at, std::size_t& match_begin, std::size_t& match_end,
                        scratch& s) const;

 private:
  bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end, scratch& s) const;
  std::shared_ptr<pcre2_real_code_8> code_;
};

}  // namespace cokv::detail

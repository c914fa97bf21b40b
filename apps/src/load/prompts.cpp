#include "load/prompts.hpp"

#include <array>
#include <boost/json/serialize.hpp>
#include <string_view>

namespace cokv::workload {
namespace json = boost::json;
namespace {

constexpr std::array<std::string_view, 64> words{
    "the",  "of",   "and",   "to",  "in",   "a",     "is",   "that", "for",  "it",   "as",   "was",  "with",
    "be",   "by",   "on",    "not", "he",   "his",   "but",  "at",   "are",  "this", "have", "had",  "from",
    "or",   "one",  "all",   "her", "they", "we",    "you",  "she",  "said", "an",   "will", "my",   "their",
    "me",   "him",  "which", "has", "if",   "there", "them", "out",  "up",   "man",  "day",  "king", "house",
    "land", "hand", "son",   "men", "came", "went",  "did",  "see",  "who",  "so",   "no",   "do"};
constexpr std::uint32_t first_id = 3;  // what lies before it is often special

// The n-th word of a prompt: of its group's while it is shared, else of its own.
std::uint64_t draw(const prompt_options& o, std::size_t number, std::uint32_t n) {
  std::uint64_t x = o.seed * 0x9e3779b97f4a7c15u;
  x ^= n < o.shared ? (number % o.groups) * 0xbf58476d1ce4e5b9u + 1 : (number + 1) * 0x94d049bb133111ebu;
  x += (std::uint64_t{n} + 1) * 0xd6e8feb86659fd93u;
  for (int i = 0; i < 2; ++i) x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
  return x ^ (x >> 29);
}

}  // namespace

std::string prompt_maker::body(const load_item& item, std::size_t number) const {
  const auto& o = options_;
  json::object out{{"model", json::string(o.model)},
                   {"max_tokens", item.output_tokens},
                   {"temperature", o.temperature},
                   {"stream", true},
                   {"stream_options", {{"include_usage", true}}}};
  if (o.temperature > 0) out["seed"] = static_cast<std::int64_t>(draw(o, number, ~0u) >> 12);
  if (o.ignore_eos) out["ignore_eos"] = true;
  if (o.vocabulary > 0) {
    json::array ids;
    for (std::uint32_t n = 0; n < item.prompt_tokens; ++n)
      ids.push_back(first_id + draw(o, number, n) % (o.vocabulary - first_id));
    out["prompt"] = std::move(ids);
    return json::serialize(out);
  }
  std::string text;
  for (std::uint32_t n = 0; n < item.prompt_tokens; ++n) {
    if (n > 0) text += ' ';
    text += words[draw(o, number, n) % words.size()];
  }
  if (o.chat)
    out["messages"] = json::array{{{"role", "user"}, {"content", json::string(text)}}};
  else
    out["prompt"] = json::string(text);
  return json::serialize(out);
}

}  // namespace cokv::workload

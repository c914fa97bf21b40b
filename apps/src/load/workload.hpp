// What is asked of a server under load, and when: arrival times, prompt and output lengths, from a seed or a trace.
//
//     auto shape = parse_lengths("sharegpt").value();
//     std::vector<load_item> all = poisson(shape, {.rate = 8, .requests = 1000}, seed);
//     std::vector<load_item> told = read_trace(stream);            // JSON lines; config_error with the line's number
//
// Every number is made from the bits of a std::mt19937_64 by explicit arithmetic: a seed gives the same load everywhere.
// Times are rounded to microseconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <istream>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

namespace cokv::workload {

// Open loop: it is sent at its time, whatever became of those before it.
struct load_item {
  std::chrono::microseconds at{};  // from the start
  std::uint32_t prompt_tokens = 0, output_tokens = 0;
  friend bool operator==(const load_item&, const load_item&) = default;
};

class number_source {
 public:
  explicit number_source(std::uint64_t seed) : bits_(seed) {}
  double unit();                         // in [0, 1)
  double exponential(double rate);       // mean 1 / rate
  double normal();                       // of mean 0 and variance 1
  std::uint64_t below(std::uint64_t n);  // n > 0
  std::uint64_t bits() { return bits_(); }

 private:
  std::mt19937_64 bits_;
  std::optional<double> spare_;
};

// Tokens of prompts, or of outputs: a log-normal distribution by its mean and the deviation of its logarithm, or a range.
struct length_distribution {
  double mean = 0, deviation = 0;     // where deviation > 0
  std::uint32_t least = 1, most = 1;  // else even, both included; also what is drawn is clipped to it
};

struct lengths {
  length_distribution prompt, output;
  // One request's.
  std::pair<std::uint32_t, std::uint32_t> draw(number_source& from) const;
};

// "fixed:P:O", "uniform:P1-P2:O1-O2", "sharegpt", "lmsys"; nothing for anything else. The latter two are log-normal with the
// means that are published for these data sets (ShareGPT 161 tokens in and 338 out, as the vLLM paper, arXiv 2309.06180,
// counts it; LMSYS-Chat-1M 69.5 and 214.5, arXiv 2309.11998) and deviations of our own choice: shapes, not the data.
std::optional<lengths> parse_lengths(std::string_view text);

struct arrivals {
  double rate = 1;                             // requests a second, above 0
  std::optional<std::uint32_t> requests = {};  // so many,
  std::optional<double> seconds = {};          // or until then; at least one of the two
};
// Independent requests: the times between them are exponential. Or one each 1/rate.
std::vector<load_item> poisson(const lengths& of, const arrivals& when, std::uint64_t seed);
std::vector<load_item> uniform(const lengths& of, const arrivals& when, std::uint64_t seed);

// A JSON object a line: {"at": seconds, "prompt_tokens": n, "output_tokens": n}, times in any order. Throws config_error that
// begins with "line N: ".
std::vector<load_item> read_trace(std::istream& from);

}  // namespace cokv::workload

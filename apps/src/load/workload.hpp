// What is asked of a server under load, and when: arrival times, prompt and output lengths, from a seed or a trace.
//
//     auto shape = parse_lengths("sharegpt").value();
//     std::vector<load_item> all = poisson(shape, {.rate = 8, .requests = 1000}, seed);
//     std::vector<load_item> told = read_trace(stream);            // JSON lines; config_error with the line's number
//
// Every number is made from the bits of a std::mt19937_64 by explicit arithmetic, and rounded, times to microseconds: a seed gives
// the same load wherever log, exp, sin and cos agree to far more digits than that.
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

// Tokens of prompts, or of outputs: log-normal, or each of a range as likely as any other.
struct length_distribution {
  double mean = 0, deviation = 0;     // where deviation > 0
  std::uint32_t least = 1, most = 1;  // both included; also what is drawn is clipped to it
};

struct lengths {
  length_distribution prompt, output;
  // One request's.
  std::pair<std::uint32_t, std::uint32_t> draw(number_source& from) const;
};

// "fixed:P:O", "uniform:P1-P2:O1-O2", "sharegpt", "lmsys"; nothing for anything else. The latter two are log-normal with the
// means and deviations of these data sets that the NanoFlow paper gives (arXiv 2408.12757, table 4; ShareGPT in 246 (547),
// out 322 (244); LMSYS-Chat in 102 (169), out 222 (210)): their shape, not their data. Clipped to 4 to 8192 tokens.
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

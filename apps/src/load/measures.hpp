// What became of requests under load, and the figures of it: times to the first token, between tokens, and per token.
//
//     std::vector<request_record> all = ...;
//     summary s = summarise(all, {.ttft_ms = 200, .tpot_ms = 50});
//
// TTFT: from when it was sent to its first token. TPOT: (last - first) / (n - 1), of answers of two tokens or more that did not
// come in one piece. ITL: each gap between two pieces. As in DistServe, SLO attainment is the share of requests that meet
// both bounds, and those that failed or could not be sent do not. Those that the user stopped, before they were due or while
// they were answered, count for nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "load/workload.hpp"

namespace cokv::workload {

struct request_record {
  load_item asked;
  double late_ms = 0;  // sent behind its time
  double ttft_ms = 0, total_ms = 0;
  std::vector<float> gaps_ms;                          // between pieces
  std::uint32_t prompt_tokens = 0, output_tokens = 0;  // as the server counts, or else pieces
  std::string error;                                   // why it is no answer: "status 503", "deadline passed"
  bool sent = false;
  bool stopped = false;

  bool answered() const noexcept { return sent && !stopped && error.empty() && output_tokens > 0; }
  std::optional<double> tpot_ms() const;
};

struct slo {
  std::optional<double> ttft_ms = {}, tpot_ms = {};
  bool asked() const noexcept { return ttft_ms || tpot_ms; }
  bool met_by(const request_record& r) const;
};

struct figures {
  std::size_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, most = 0;
};
// Percentiles by the nearest rank: the least value that so many percent are not above.
figures figures_of(std::vector<double> values);

struct summary {
  // Of those asked for sent, not sent and stopped are all; of those sent answered and failed.
  std::size_t asked = 0, sent = 0, answered = 0, failed = 0, not_sent = 0, stopped = 0;
  double seconds = 0;  // from the first one's time to the last one's end
  double asked_per_s = 0, answered_per_s = 0, output_tokens_per_s = 0;
  std::uint64_t prompt_tokens = 0, output_tokens = 0;
  figures late, ttft, tpot, itl, total;                     // milliseconds
  std::vector<std::pair<std::string, std::size_t>> errors;  // by kind, the most frequent first
  std::optional<double> attainment = {};                    // of all that were not stopped
};
summary summarise(const std::vector<request_record>& all, const slo& bounds);

}  // namespace cokv::workload

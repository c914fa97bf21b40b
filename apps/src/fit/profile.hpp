// What a model's steps take on a machine, as it was measured there (`cokv fit`): what `cokv simulate --profile` goes by.
//
//     {"machine": "AMD EPYC", "cores": 2, "model": "models/tiny-kjv", "dtype": "f32", "threads": 1,
//      "layers": 8, "hidden": 192, "max_positions": 8192, "prompts": [[1, 0.00004], [64, 0.0006]], ...}
//
// | field                   | of                                                                                             |
// |-------------------------|------------------------------------------------------------------------------------------------|
// | machine, model          | names, for people                                                                              |
// | cores, threads          | of the machine; of each worker                                                                 |
// | dtype                   | of products and KV, bf16 or f32                                                                |
// | layers, hidden          | of the model                                                                                   |
// | max_positions           | of a sequence                                                                                  |
// | kv_bytes                | of KV, of a token and layer; optional: without it nothing is known of what moving it takes      |
// | prompts, answers        | [[tokens, seconds], ..]: a layer of a step of so many, what they look at left out: of prompts'  |
// |                         | tokens, and of answers' (one a sequence)                                                       |
// | prompts_end,            | the same of the last layer, in which only what samples is computed to its end, the output      |
// | answers_end             | matrix, and choosing                                                                           |
// | prompt_pair, answer_pair| seconds of a layer for each token that one of them looks at                                    |
// | step, token             | seconds of the engine's own: a step, and each token that it tells                              |
// | prompts_beside,         | [1, x2, x3, ..]: how many times longer a step takes while so many workers of the machine       |
// | answers_beside          | compute, with it; of more than are told nothing is said                                        |
// | prompts_idle,           | [[seconds, seconds], ..]: how much longer a step of all layers takes that comes so long behind  |
// | answers_idle            | the last one; behind longer pauses than are told as behind the last of them. Optional: no longer |
// | pipeline_tokens,        | [[s1, s2], [s1, s2, s3], ..]: of 2, 3, .. workers of the machine, one behind the other: seconds from a |
// | answer_tokens           | token to the next while 1, 2, .. sequences of so many tokens are decoded, each in steps of its own, as |
// |                         | a client on the machine sees them over HTTP. Of more, as of the last. Optional: nothing is said      |
// | pipeline_prompts,       | [s, s, ..]: seconds in such pipelines until the first token of a prompt of so many comes, a fifth of a |
// | prompt_tokens           | second behind what was before it, as the client sees it. Optional: nothing is said of prompts        |
// | copy_bytes_per_second   | in memory, one way                                                                             |
// | link_bytes_per_second,  | over TCP between two workers of the machine, one way; how long a message takes                 |
// | link_seconds            |                                                                                                |
// | source                  | where the numbers are from, when they were not measured here; optional                         |
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cokv::fit {

constexpr std::chrono::milliseconds first_pause(200);  // of pipeline_prompts

// Through points in ascending order of both, straight between two of them and behind the last two; before the first, in
// proportion.
class curve {
 public:
  curve() = default;
  explicit curve(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {}
  double at(double x) const noexcept;
  const std::vector<std::pair<double, double>>& points() const noexcept { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;
};

struct profile {
  std::string machine, model, dtype, source;
  std::uint32_t cores = 1, threads = 1;
  std::uint32_t layers = 1, hidden = 1, max_positions = 1;
  std::uint32_t kv_bytes = 0;
  curve prompts, answers, prompts_end, answers_end;
  double prompt_pair = 0, answer_pair = 0;
  double step = 0, token = 0;
  std::vector<double> prompts_beside{1}, answers_beside{1};
  curve prompts_idle, answers_idle;
  std::vector<std::vector<double>> pipeline_tokens;
  std::vector<double> pipeline_prompts;
  std::uint32_t answer_tokens = 0, prompt_tokens = 0;
  double copy_bytes_per_second = 0, link_bytes_per_second = 0, link_seconds = 0;
};

std::string to_text(const profile& p);
// Throw config_error, whose line names the file and the field.
profile parse_profile(std::string_view text, const std::string& file);
profile read_profile(const std::string& file);

}  // namespace cokv::fit

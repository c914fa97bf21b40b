// Sampling on a CUDA device against cokv::sampler: on a stand-in in every build, and unchanged on a device (label gpu).
#include <cmath>
#include <limits>

#include "cokv/engine/sampler.hpp"
#include "engine/cuda/library.hpp"
#include "engine/kernel/random.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

namespace {

struct one_row {
  std::vector<float> logits;
  sampling_params params;
  std::uint64_t position = 0;
  std::vector<token_id> prompt, answer;
  bool last_is_fed = false;  // the answer's last token is told by the step's tokens
};

std::vector<std::int32_t> sample_all(cuda_machine& m, stream s, const device_kernels& kernels,
                                     const std::vector<one_row>& rows) {
  const auto vocab = rows.front().logits.size();
  std::vector<float> logits;
  std::vector<gpu::sample_row> of;
  std::vector<std::uint32_t> history{7, 8}, tokens{3};
  std::vector<gpu::token_bias_at> biases{{}};
  for (auto& r : rows) {
    auto& p = r.params;
    logits.insert(logits.end(), r.logits.begin(), r.logits.end());
    const auto listed = r.answer.size() - r.last_is_fed;
    of.push_back({p.seed, r.position, p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty,
                  p.frequency_penalty, p.top_k, static_cast<std::uint32_t>(history.size()),
                  static_cast<std::uint32_t>(r.prompt.size()), static_cast<std::uint32_t>(listed),
                  r.last_is_fed ? static_cast<std::uint32_t>(tokens.size()) : gpu::not_kept,
                  static_cast<std::uint32_t>(biases.size()), static_cast<std::uint32_t>(p.logit_bias.size())});
    for (auto t : r.prompt) history.push_back(static_cast<std::uint32_t>(t));
    for (std::size_t i = 0; i < listed; ++i) history.push_back(static_cast<std::uint32_t>(r.answer[i]));
    if (r.last_is_fed) tokens.push_back(static_cast<std::uint32_t>(r.answer.back()));
    for (auto& b : p.logit_bias) biases.push_back({static_cast<std::uint32_t>(b.token), b.bias});
  }
  const auto far_logits = on_device(m, s, logits), far_of = on_device(m, s, of), far_history = on_device(m, s, history),
             far_tokens = on_device(m, s, tokens), far_biases = on_device(m, s, biases),
             times = on_device(m, s, std::vector<std::uint32_t>(logits.size(), 0xdbdbdbdb)),
             out = on_device(m, s, std::vector<std::int32_t>(rows.size(), -7));
  REQUIRE(!s.launch_native("sample", {}, [&](void* native) {
    return kernels.sample(
        {at<float>(far_logits), at<gpu::sample_row>(far_of), at<std::uint32_t>(far_history),
         at<std::uint32_t>(far_tokens), at<gpu::token_bias_at>(far_biases), at<std::uint32_t>(times),
         at<std::int32_t>(out), static_cast<std::uint32_t>(rows.size()), static_cast<std::uint32_t>(vocab)},
        native);
  }));
  return back_from<std::int32_t>(m, s, out);
}

std::int32_t on_cpu(const one_row& r) {
  sampler choose;
  const auto token = choose.sample(r.logits, r.params, r.position, {r.prompt, r.answer});
  return token ? *token : gpu::no_token;
}

}  // namespace

TEST_CASE("cuda sampling: what the CPU would choose, whatever is asked for") {
  std::size_t compared = 0, apart = 0;
  with_kernels([&](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    auto below = [&](std::size_t n) { return random() % n; };
    const std::size_t sizes[] = {1, 2, 97, 1000, 5000};
    const auto vocab = sizes[below(5)];
    std::vector<one_row> rows;
    for (int i = 0; i < 6; ++i) {
      one_row r;
      r.logits = random_floats(vocab, random(), random() % 3 ? 12 : 1);
      if (random() % 3 == 0)
        for (auto& l : r.logits) l = std::round(l);  // many are equal
      if (random() % 4 == 0)
        for (auto& l : r.logits) l = random() % 3 ? -std::numeric_limits<float>::infinity() : l;
      auto& p = r.params;
      const float temperatures[] = {0, 0.2f, 1, 1, 3, 1e-40f};
      p.temperature = temperatures[below(6)];
      const std::uint32_t counts[] = {0, 0, 1, 2, 5, 50, 4000};
      p.top_k = counts[below(7)];
      const float masses[] = {1, 1, 0.1f, 0.5f, 0.95f};
      p.top_p = masses[below(5)];
      const float least[] = {0, 0, 0.05f, 1};
      p.min_p = least[below(4)];
      p.seed = (std::uint64_t{random()} << 32) | random();
      r.position = random() % 3 ? random() : (std::uint64_t{random()} << 32) | random();
      if (random() % 2) {
        p.repetition_penalty = 1.3f;
        p.presence_penalty = random() % 2 ? 0.5f : -0.5f;
        p.frequency_penalty = random() % 2 ? 0.25f : 0;
        for (auto* list : {&r.prompt, &r.answer})
          for (auto n = below(40); n > 0; --n) list->push_back(static_cast<token_id>(below(vocab + 2)));
        r.last_is_fed = !r.answer.empty() && random() % 2;
      }
      if (random() % 3 == 0)
        for (auto n = 1 + below(3); n > 0; --n)
          p.logit_bias.push_back(
              {static_cast<token_id>(below(vocab)), random() % 3 ? 4.f : -std::numeric_limits<float>::infinity()});
      rows.push_back(std::move(r));
    }
    const auto got = sample_all(m, s, kernels, rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ++compared;
      if (got[i] == on_cpu(rows[i])) continue;
      ++apart;
      MESSAGE("vocab ", vocab, " temperature ", rows[i].params.temperature, " top_k ", rows[i].params.top_k, " top_p ",
              rows[i].params.top_p, " min_p ", rows[i].params.min_p, ": ", got[i], ", not ", on_cpu(rows[i]));
    }
  });
  // Weights are rounded: a draw, or a mass, that falls on the border between two tokens may go to either.
  CHECK(apart <= compared / 200);
}

TEST_CASE("cuda sampling: logits that say nothing give no token") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    constexpr auto infinity = std::numeric_limits<float>::infinity();
    std::vector<one_row> rows(5);
    for (auto& r : rows) r.logits = random_floats(300, random());
    rows[0].logits[random() % 300] = std::numeric_limits<float>::quiet_NaN();
    rows[1].logits[random() % 300] = infinity;
    rows[2].logits.assign(300, -infinity);
    rows[3].params.logit_bias = {{5, std::numeric_limits<float>::quiet_NaN()}};
    rows[4].params.temperature = 0;
    const auto got = sample_all(m, s, kernels, rows);
    for (int i = 0; i < 4; ++i) CHECK(got[std::size_t(i)] == gpu::no_token);
    CHECK(got[4] == on_cpu(rows[4]));
  });
}

TEST_CASE("cuda sampling: many draws fall as often as they should") {
  bool once = false;
  with_kernels([&](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937&) {
    if (std::exchange(once, true)) return;
    std::vector<one_row> rows(400);
    const std::vector<float> logits{0, std::log(2.f), std::log(3.f), std::log(4.f), -5};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].logits = logits;
      rows[i].params.top_k = i % 2 ? 4 : 0;
      rows[i].params.min_p = 0.1f;
      rows[i].position = i;
    }
    std::vector<int> times(5);
    for (auto t : sample_all(m, s, kernels, rows)) ++times[static_cast<std::size_t>(t)];
    CHECK(times[4] == 0);
    for (int t = 0; t < 4; ++t) CHECK(std::abs(times[std::size_t(t)] - 40 * (t + 1)) < 40);
  });
}

TEST_CASE("cuda sampling: tokens of one step become the next one's, and what is none becomes the first") {
  with_kernels([](cuda_machine& m, stream s, const device_kernels& kernels, std::mt19937& random) {
    const auto n = random() % 600;
    std::vector<std::int32_t> from;
    std::vector<std::uint32_t> to(n, 99), want(n, 99);
    std::vector<gpu::fed_place> places;
    for (std::uint32_t i = 0; i < n; ++i) {
      from.push_back(i % 5 ? static_cast<std::int32_t>(random() % 1000) : gpu::no_token);
      if (i % 3 == 0) continue;
      places.push_back({i, static_cast<std::uint32_t>(n - 1 - i)});
      want[n - 1 - i] = from[i] < 0 ? 0 : static_cast<std::uint32_t>(from[i]);
    }
    const auto far_from = on_device(m, s, from), far_to = on_device(m, s, to), far_places = on_device(m, s, places);
    REQUIRE(!s.launch_native("feed", {}, [&](void* native) {
      return kernels.feed({at<std::int32_t>(far_from), at<std::uint32_t>(far_to), at<gpu::fed_place>(far_places),
                           static_cast<std::uint32_t>(places.size())},
                          native);
    }));
    if (n > 0) CHECK(back_from<std::uint32_t>(m, s, far_to) == want);
    REQUIRE(!m.wait(s.record()));
  });
}

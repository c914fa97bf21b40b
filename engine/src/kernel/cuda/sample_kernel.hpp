// Chooses a row's next token as cokv::sampler does: penalties and biases, greedy, or by temperature, top-k, top-p and
// min-p. A block of threads takes a row. Compiled for the host and for devices.
//
// Nothing is sorted. What top-k and top-p keep is all above some logit and the first few of those that equal it, and that
// logit is found bit by bit, by counting and adding up what lies above. Weights are integers, in parts of 2^40 of the
// likeliest's: sums of them do not depend on who adds first, and what weighs less than that is as good as impossible.
#pragma once

#include <cmath>

#include "kernel/cuda/row_kernels.hpp"
#include "kernel/philox.hpp"

namespace cokv::kernel::gpu {

constexpr std::uint32_t sample_threads = 1024, sample_some = 32;
constexpr std::int32_t no_token = -1;  // of logits that say nothing: not a number, infinite, or none

struct token_bias_at {
  std::uint32_t token;  // below the vocabulary's size
  float bias;
};

// As sampling_params.
struct sample_row {
  std::uint64_t seed, position;
  float temperature, top_p, min_p, repetition, presence, frequency;
  std::uint32_t top_k;
  // Tokens of prompt and answer in job.history, which penalties look at. `last`: the answer goes on with this row of the
  // step's tokens, or is whole (not_kept).
  std::uint32_t history, prompt, answer, last;
  std::uint32_t bias, biases;  // in job.biases

  COKV_ON_DEVICE bool looks_back() const { return repetition != 1 || presence != 0 || frequency != 0; }
};

struct sample_job {
  float* logits;  // [rows][vocab]; penalties and biases stay in them
  const sample_row* rows_of;
  const std::uint32_t* history;
  const std::uint32_t* tokens;  // of the step's rows
  const token_bias_at* biases;
  std::uint32_t* times;  // [rows][vocab], where a row looks back
  std::int32_t* out;     // [rows]
  std::uint32_t rows, vocab;
};

struct sample_shared {
  static constexpr std::uint32_t most_near = 3072;
  std::uint64_t parts[sample_threads], sums[sample_some];
  float tops[sample_threads];
  std::uint32_t ids[sample_threads];
  float near_logits[most_near];  // the likeliest, in any order
  std::uint32_t near_ids[most_near], near_count;
  float top;
  std::uint32_t best;
};

// Larger logits have larger keys, and equal ones the same.
COKV_ON_DEVICE std::uint32_t key_of(float logit) {
  const auto bits = bits_as<std::uint32_t>(logit + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
COKV_ON_DEVICE float logit_of(std::uint32_t key) {
  return bits_as<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

COKV_ON_DEVICE void add_shared(std::uint32_t& to, std::uint32_t n, std::uint32_t& before) {
#if defined(__CUDA_ARCH__)
  before = atomicAdd(&to, n);
#else
  before = to;
  to += n;
#endif
}
COKV_ON_DEVICE void or_shared(std::uint32_t& to, std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  atomicOr(&to, bits);
#else
  to |= bits;
#endif
}

template <class Each>
class row_sampling {
 public:
  COKV_ON_DEVICE row_sampling(const sample_job& job, sample_shared& shared, std::uint32_t row, Each each)
      : job_(job), s_(shared), each_(each), r_(job.rows_of[row]), row_(row) {
    logits_ = job.logits + std::size_t{row} * job.vocab;
  }

  COKV_ON_DEVICE void run() {
    if (r_.looks_back()) penalise();
    if (r_.biases > 0)
      each_([&](std::uint32_t thread) {
        for (std::uint32_t i = 0; thread == 0 && i < r_.biases; ++i)
          logits_[job_.biases[r_.bias + i].token] += job_.biases[r_.bias + i].bias;
      });
    find_top();
    const bool nothing = s_.best == not_kept;
    if (nothing || r_.temperature == 0 || r_.top_k == 1)
      return put(nothing ? no_token : static_cast<std::int32_t>(s_.best));
    put(no_token);  // until it is drawn
    // A denormal temperature has no finite inverse: what is below the top then still weighs nothing, and the top 1.
    scale_ = fminf(1.44269504088896341f / r_.temperature, 3.402823466e+38f);
    const bool by_count = r_.top_k != 0 && r_.top_k < job_.vocab, by_mass = r_.top_p < 1;
    if (by_count || by_mass)
      draw_from_the_likeliest(by_count, by_mass);
    else
      draw_in_order();
  }

 private:
  static constexpr std::uint64_t whole = std::uint64_t{1} << 40;  // the likeliest's weight
  static constexpr std::uint32_t seen = 1u << 31;

  // f(logit, id) of a thread's share. Several are on their way at once: one block has to hide the memory's latency alone.
  template <class F>
  COKV_ON_DEVICE void each_logit(std::uint32_t thread, F f) const {
    constexpr std::uint32_t at_once = 8;
    auto i = thread;
    for (; i + (at_once - 1) * sample_threads < job_.vocab; i += at_once * sample_threads) {
      float some[at_once];
      COKV_UNROLL
      for (std::uint32_t n = 0; n < at_once; ++n) some[n] = logits_[i + n * sample_threads];
      COKV_UNROLL
      for (std::uint32_t n = 0; n < at_once; ++n) f(some[n], i + n * sample_threads);
    }
    for (; i < job_.vocab; i += sample_threads) f(logits_[i], i);
  }

  COKV_ON_DEVICE void put(std::int32_t token) {
    each_([&](std::uint32_t thread) {
      if (thread == 0) job_.out[row_] = token;
    });
  }

  COKV_ON_DEVICE void penalise() {
    auto* times = job_.times + std::size_t{row_} * job_.vocab;
    each_([&](std::uint32_t thread) {
      for (auto i = thread; i < job_.vocab; i += sample_threads) times[i] = 0;
    });
    const auto listed = r_.prompt + r_.answer, all = listed + (r_.last == not_kept ? 0 : 1);
    each_([&](std::uint32_t thread) {
      for (auto i = thread; i < all; i += sample_threads) {
        const auto token = i < listed ? job_.history[r_.history + i] : job_.tokens[r_.last];
        if (token >= job_.vocab) continue;
        std::uint32_t before = 0;
        if (i >= r_.prompt) add_shared(times[token], 1, before);
        or_shared(times[token], seen);
      }
    });
    each_([&](std::uint32_t thread) {
      for (auto i = thread; i < job_.vocab; i += sample_threads) {
        if (times[i] == 0) continue;
        auto& logit = logits_[i];
        logit = logit > 0 ? logit / r_.repetition : logit * r_.repetition;
        if (const auto n = times[i] & ~seen; n > 0) logit -= r_.presence + static_cast<float>(n) * r_.frequency;
      }
    });
  }

  // The largest logit, and of equal ones the lowest id: not_kept where there is none to be had.
  COKV_ON_DEVICE void find_top() {
    const auto better = [](float a, std::uint32_t i, float b, std::uint32_t j) { return a > b || (a == b && i < j); };
    const float lowest = -HUGE_VALF;
    each_([&](std::uint32_t thread) {
      float top = lowest;
      std::uint32_t best = not_kept;
      each_logit(thread, [&](float l, std::uint32_t i) {
        if (l > top) top = l, best = i;
        if (!(l < HUGE_VALF)) top = HUGE_VALF;  // above all that may be
      });
      s_.tops[thread] = top, s_.ids[thread] = best;
    });
    each_([&](std::uint32_t thread) {
      if (thread >= sample_some) return;
      for (auto i = thread + sample_some; i < sample_threads; i += sample_some)
        if (better(s_.tops[i], s_.ids[i], s_.tops[thread], s_.ids[thread]))
          s_.tops[thread] = s_.tops[i], s_.ids[thread] = s_.ids[i];
    });
    each_([&](std::uint32_t thread) {
      if (thread > 0) return;
      for (std::uint32_t i = 1; i < sample_some; ++i)
        if (better(s_.tops[i], s_.ids[i], s_.tops[0], s_.ids[0])) s_.tops[0] = s_.tops[i], s_.ids[0] = s_.ids[i];
      s_.top = s_.tops[0];
      s_.best = s_.tops[0] < HUGE_VALF ? s_.ids[0] : not_kept;
    });
  }

  // 0 for what min-p drops, once it is its turn.
  COKV_ON_DEVICE std::uint64_t weight(float logit) const {
    const auto w = static_cast<std::uint64_t>(exp2f((logit - s_.top) * scale_) * static_cast<float>(whole) + 0.5f);
    return w < least_ ? 0 : w;
  }
  COKV_ON_DEVICE void apply_min_p() {
    least_ = static_cast<std::uint64_t>(double{r_.min_p} * static_cast<double>(whole));
  }

  // The sum of f(logit, id) over all that is looked at, or the likeliest alone.
  template <class F>
  COKV_ON_DEVICE std::uint64_t sum(F f) {
    each_([&](std::uint32_t thread) {
      std::uint64_t sum = 0;
      if (near_)
        for (auto i = thread; i < s_.near_count; i += sample_threads) sum += f(s_.near_logits[i], s_.near_ids[i]);
      else
        each_logit(thread, [&](float l, std::uint32_t i) { sum += f(l, i); });
      s_.parts[thread] = sum;
    });
    return add_up([](std::uint32_t some, std::uint32_t i) { return some + i * sample_some; });
  }
  // All of parts; s_.sums has those of sample_some groups, of which `part` tells the members.
  template <class F>
  COKV_ON_DEVICE std::uint64_t add_up(F part) {
    each_([&](std::uint32_t thread) {
      if (thread >= sample_some) return;
      std::uint64_t sum = 0;
      for (std::uint32_t i = 0; i < sample_threads / sample_some; ++i) sum += s_.parts[part(thread, i)];
      s_.sums[thread] = sum;
    });
    std::uint64_t all = 0;
    for (std::uint32_t i = 0; i < sample_some; ++i) all += s_.sums[i];
    return all;
  }
  COKV_ON_DEVICE std::uint64_t count_from(std::uint32_t key) {
    return sum([&](float l, std::uint32_t) -> std::uint64_t { return key_of(l) >= key; });
  }
  COKV_ON_DEVICE std::uint64_t mass_from(std::uint32_t key) {
    return sum([&](float l, std::uint32_t) { return key_of(l) >= key ? weight(l) : std::uint64_t{0}; });
  }

  // The largest key that is enough; enough(0) holds.
  template <class F>
  COKV_ON_DEVICE static std::uint32_t largest(F enough) {
    std::uint32_t key = 0;
    for (std::uint32_t bit = 1u << 31; bit != 0; bit >>= 1)
      if (enough(key | bit)) key |= bit;
    return key;
  }

  // What is kept: all above `floor_`, and the first `ties_` of those that equal it.
  COKV_ON_DEVICE std::uint64_t kept_from(std::uint32_t key) {
    if (key > floor_) return mass_from(key);
    return mass_from(floor_ + 1) + (ties_ > 0 ? ties_ * weight(logit_of(floor_)) : 0);
  }

  // The likeliest few in shared memory, if those that matter are few: everything behind looks at them alone.
  COKV_ON_DEVICE void come_near(std::uint64_t count, std::uint64_t mass) {
    std::uint32_t from = 0;
    for (float width = 1; width < 1e4f; width *= 2) {
      const auto key = key_of(s_.top - width * (mass > 0 ? r_.temperature : 1.0f));
      if (mass > 0 ? mass_from(key) < mass : count_from(key) < count) continue;
      from = key;
      break;
    }
    if (count_from(from) > sample_shared::most_near) return;
    each_([&](std::uint32_t thread) {
      if (thread == 0) s_.near_count = 0;
    });
    each_([&](std::uint32_t thread) {
      for (auto i = thread; i < job_.vocab; i += sample_threads) {
        if (key_of(logits_[i]) < from) continue;
        std::uint32_t at = 0;
        add_shared(s_.near_count, 1, at);
        s_.near_logits[at] = logits_[i], s_.near_ids[at] = i;
      }
    });
    near_ = true;
  }

  COKV_ON_DEVICE void draw_from_the_likeliest(bool by_count, bool by_mass) {
    if (by_count) {
      come_near(r_.top_k, 0);
      floor_ = largest([&](std::uint32_t key) { return count_from(key) >= r_.top_k; });
      ties_ = r_.top_k - count_from(floor_ + 1);
    }
    auto total = by_count ? kept_from(0) : mass_from(0);
    if (by_mass) {
      const auto part = static_cast<std::uint64_t>(ceil(double{r_.top_p} * static_cast<double>(total)));
      const auto enough = part < total ? part : total;
      if (!by_count) come_near(0, enough);
      const auto key = largest([&](std::uint32_t k) { return kept_from(k) >= enough; });
      const auto one = weight(logit_of(key)), needed = (enough - mass_from(key + 1) + one - 1) / one;
      if (key > floor_ || needed < ties_) ties_ = needed;
      floor_ = key;
    }
    apply_min_p();
    total = kept_from(0);
    const auto target = target_of(total);
    const auto key = largest([&](std::uint32_t k) { return kept_from(k) > target; });
    const auto nth = (target - mass_from(key + 1)) / weight(logit_of(key));
    // Of those that equal it, by id.
    const auto equals = sum([&](float l, std::uint32_t) -> std::uint64_t { return key_of(l) == key; });
    std::uint32_t below = 0;  // the largest id with no more than `nth` of them before it
    if (equals > 1)
      below = largest([&](std::uint32_t id) {
        return sum([&](float l, std::uint32_t i) -> std::uint64_t { return key_of(l) == key && i < id; }) <= nth;
      });
    each_([&](std::uint32_t thread) {
      const auto n = near_ ? s_.near_count : job_.vocab;
      for (auto i = thread; i < n; i += sample_threads) {
        const auto id = near_ ? s_.near_ids[i] : i;
        if (key_of(near_ ? s_.near_logits[i] : logits_[i]) == key && (equals == 1 || id == below))
          job_.out[row_] = static_cast<std::int32_t>(id);
      }
    });
  }

  COKV_ON_DEVICE std::uint64_t target_of(std::uint64_t total) const {
    const auto target = static_cast<std::uint64_t>(uniform_of(r_.seed, r_.position) * static_cast<double>(total));
    return target < total ? target : total - 1;
  }

  // Of all, by id: each thread has neighbours.
  COKV_ON_DEVICE void draw_in_order() {
    apply_min_p();
    const auto each = (job_.vocab + sample_threads - 1) / sample_threads;
    each_([&](std::uint32_t thread) {
      std::uint64_t sum = 0;
      for (auto i = thread * each; i < (thread + 1) * each && i < job_.vocab; ++i) sum += weight(logits_[i]);
      s_.parts[thread] = sum;
    });
    constexpr auto neighbours = sample_threads / sample_some;
    const auto target = target_of(add_up([](std::uint32_t some, std::uint32_t i) { return some * neighbours + i; }));
    each_([&](std::uint32_t thread) {
      std::uint64_t before = 0;
      for (std::uint32_t i = 0; i < thread / neighbours; ++i) before += s_.sums[i];
      for (auto i = thread / neighbours * neighbours; i < thread; ++i) before += s_.parts[i];
      if (target < before || target >= before + s_.parts[thread]) return;
      for (auto i = thread * each;; ++i) {
        before += weight(logits_[i]);
        if (target < before) return (void)(job_.out[row_] = static_cast<std::int32_t>(i));
      }
    });
  }

  const sample_job& job_;
  sample_shared& s_;
  Each each_;
  const sample_row& r_;
  const std::uint32_t row_;
  float* logits_;
  float scale_ = 0;
  std::uint64_t least_ = 0, ties_ = 0;
  std::uint32_t floor_ = 0;  // that no logit has: a NaN's
  bool near_ = false;
};

// to[places[i].to] = from[places[i].from]: tokens that the step before sampled, on their way into this one. One that
// could not be sampled ends its request; what stands for it is looked at by nobody.
struct fed_place {
  std::uint32_t from, to;
};
struct feed_job {
  const std::int32_t* from;
  std::uint32_t* to;
  const fed_place* places;
  std::uint32_t count;
};
template <class Each>
COKV_ON_DEVICE void feed_tokens(const feed_job& job, std::uint32_t block, Each each) {
  each([&](std::uint32_t thread) {
    const auto i = block * row_threads + thread;
    if (i >= job.count) return;
    const auto token = job.from[job.places[i].from];
    job.to[job.places[i].to] = token < 0 ? 0 : static_cast<std::uint32_t>(token);
  });
}

}  // namespace cokv::kernel::gpu

// What a stage of a pipeline takes for a step: by the device's sheet, by what was measured, or a fixed time.
//
//     fixed_price each(0.020, 0.001);                    // of a step with tokens of prompts, of any other
//     sheet_price sheet(plan::roofline(config, 2, gpu, {.ranks = 4, .link = 270e9}), config.layers, topology(8, 4));
//     const double s = sheet.seconds(step_of(batch), 3);
#pragma once

#include <algorithm>
#include <optional>

#include "cokv/engine/model.hpp"
#include "fit/profile.hpp"
#include "plan/roofline.hpp"

namespace cokv::simulate {

// Prompts are of one token, and all that is sampled is the other: so that a step tells prompts from answers.
constexpr token_id prompt_token = 2, answer_token = 1;

struct step {
  plan::step_load load;
  std::size_t prompts = 0;  // sequences with tokens of a prompt, or computed again
  std::size_t sampled = 0;
  double prompt_pairs = 0, answer_pairs = 0;  // of load.pairs
};
step step_of(const batch& b);

class price {
 public:
  virtual ~price() = default;
  virtual double seconds(const step& s, std::uint32_t stage) const = 0;
  // Of that, what comes behind the last layer, when all KV is there.
  virtual double behind(const step&, std::uint32_t stage) const { return 0; }
  // And how much longer where the worker has been idle for so many seconds (0: it goes on), and so many of its machine compute, with
  // it.
  virtual double late(const step&, std::uint32_t /*stage*/, double /*idle*/, std::uint32_t /*workers*/) const {
    return 0;
  }
  // How many times longer while so many workers of its machine compute, with it.
  virtual double beside(const step&, std::uint32_t workers) const { return 1; }
};

class fixed_price final : public price {
 public:
  fixed_price(double prompt, double token) : prompt_(prompt), token_(token) {}
  double seconds(const step& s, std::uint32_t) const override { return s.prompts > 0 ? prompt_ : token_; }

 private:
  double prompt_, token_;
};

class sheet_price final : public price {
 public:
  sheet_price(plan::roofline of, std::uint32_t layers, topology split)
      : of_(of), layers_(layers), split_(std::move(split)) {}
  double seconds(const step& s, std::uint32_t stage) const override {
    return of_.layers(s.load, split_.layers(layers_, stage).count) + behind(s, stage);
  }
  double behind(const step& s, std::uint32_t stage) const override {
    return stage + 1 == split_.depth() ? of_.logits(static_cast<double>(s.sampled)) : 0;
  }

 private:
  plan::roofline of_;
  std::uint32_t layers_;
  topology split_;
};

// What a step takes longer that one worker of a machine hands on to the next, in seconds: while 1, 2, .. of them compute, with it, and of
// more as of the last. Of one with tokens of prompts `prompts` is said of the first of these.
struct hops {
  std::vector<double> by_workers{0};
  std::optional<double> prompts;
};

// A step with tokens of prompts costs what they do, and its answers beside them no more rows than they are.
class profile_price final : public price {
 public:
  profile_price(fit::profile p, topology split, hops handed_on = {})
      : p_(std::move(p)), split_(std::move(split)), handed_on_(std::move(handed_on)) {}
  double seconds(const step& s, std::uint32_t stage) const override;
  double late(const step& s, std::uint32_t stage, double idle, std::uint32_t workers) const override;
  double beside(const step& s, std::uint32_t workers) const override {
    const auto& measured = s.prompts > 0 ? p_.prompts_beside : p_.answers_beside;
    return measured.at(std::min<std::size_t>(workers, measured.size()) - 1);
  }

 private:
  fit::profile p_;
  topology split_;
  hops handed_on_;
};

}  // namespace cokv::simulate

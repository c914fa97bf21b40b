// Which stages' hosts are lost, and when: at times that were given, or each at random by the seed, on average once in so long. Pure.
//
//     const failure_plan all = failures_of(options);                 // of --fail 30:0.2 --fail 60:prefill1.0 --mtbf 86400
//     random_failures one(seed, stage, all.mean_seconds);
//     wait(one.next());                                              // seconds until this host is lost, and so on
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cokv/runtime/detail/splitmix.hpp"
#include "simulate/simulate.hpp"

namespace cokv::simulate {

struct given_failure {
  double at = 0;         // seconds behind the first request's time
  bool prompts = false;  // of those that compute prompts for others
  std::uint32_t replica = 0, stage = 0;
  friend bool operator==(const given_failure&, const given_failure&) = default;
};

struct failure_plan {
  std::vector<given_failure> given;
  std::optional<double> mean_seconds;  // between two of one host
  bool any() const noexcept { return !given.empty() || mean_seconds; }
};

// "30:0.2", "60:prefill1.0"; nothing where it is none.
std::optional<given_failure> parse_failure(std::string_view text);

// Throws config_error naming the flag: what is none, what is not there, and what does not go with what.
failure_plan failures_of(const options& o);

// Of one host. Times between losses are exponential: what it has run so far says nothing of when.
class random_failures {
 public:
  random_failures(std::uint64_t seed, std::uint64_t host, double mean_seconds)
      : bits_(detail::splitmix(seed).next() ^ detail::splitmix(~host).next()), mean_(mean_seconds) {}
  double next() { return -mean_ * std::log(1 - bits_.unit()); }

 private:
  detail::splitmix bits_;
  double mean_;
};

}  // namespace cokv::simulate

#include "cokv/runtime/retry.hpp"

#include <algorithm>
#include <array>
#include <random>

namespace cokv {

bool is_transient(error_code ec) noexcept {
  namespace sys = boost::system::errc;
  static const std::array own{errc::deadline, errc::queue_full, errc::unavailable};
  static const std::array conditions{sys::timed_out,           sys::connection_refused,
                                     sys::connection_reset,    sys::connection_aborted,
                                     sys::broken_pipe,         sys::host_unreachable,
                                     sys::network_down,        sys::network_reset,
                                     sys::network_unreachable, sys::resource_unavailable_try_again,
                                     sys::interrupted};
  return std::any_of(own.begin(), own.end(), [&](errc e) { return ec == e; }) ||
         std::any_of(conditions.begin(), conditions.end(),
                     [&](auto c) { return ec == sys::make_error_condition(c); }) ||
         ec == asio::error::eof || ec == asio::error::host_not_found_try_again;
}

namespace detail {
namespace {

duration saturating_twice(duration d) { return d > duration::max() / 2 ? duration::max() : d * 2; }

}  // namespace

std::uint64_t seed_source::next() {
  if (draw_) return draw_();
  std::random_device system;
  return std::uint64_t{system()} << 32 | system();
}

retry_schedule::retry_schedule(const retry_options& options, std::uint64_t seed, time_point start)
    : limit_(options.attempts),
      bound_(std::max(options.first_pause, duration::zero())),
      most_(std::max(options.most_pause, duration::zero())),
      deadline_(options.deadline > time_point::max() - start ? time_point::max() : start + options.deadline),
      state_(seed) {}

duration retry_schedule::left(time_point now) const noexcept {
  if (deadline_ == time_point::max()) return duration::max();
  return std::max(deadline_ - now, duration::zero());
}

std::optional<duration> retry_schedule::pause(time_point now) noexcept {
  if (limit_ > 0 && attempts_ >= limit_) return std::nullopt;
  bound_ = std::min(bound_, most_);
  const auto choices = static_cast<std::uint64_t>(bound_.count()) + 1;
  const duration drawn(static_cast<std::int64_t>((static_cast<unsigned __int128>(random()) * choices) >> 64));
  bound_ = saturating_twice(bound_);
  if (drawn >= left(now)) return std::nullopt;
  return drawn;
}

// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
std::uint64_t retry_schedule::random() noexcept {
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace detail
}  // namespace cokv

// The greatest rate at which enough requests are good enough, as DistServe means goodput: by doubling, then by halves, to 5 %.
//
//     goodput_search search(o.rate, o.attainment);
//     while (auto rate = search.next()) search.tried(share_at(*rate));
//     print(search.found());                                          // 0: there is none
#pragma once

#include <optional>

namespace cokv::workload {

class goodput_search {
 public:
  goodput_search(double from, double attainment) : from_(from), attainment_(attainment), rate_(from) {}

  // What to try; nothing when it is found, or there is none above a thousandth of where it began.
  std::optional<double> next() const {
    const bool over = bad_ > 0 && bad_ <= good_ * 1.05;
    return over || (good_ == 0 && bad_ > 0 && bad_ < from_ / 1000) || good_ > 1e6 ? std::nullopt : std::optional(rate_);
  }
  // The share of requests that met the bounds there. True: the greatest good rate so far.
  bool tried(double share) {
    const bool enough = share >= attainment_;
    (enough ? good_ : bad_) = rate_;
    rate_ = bad_ == 0 ? 2 * rate_ : (good_ + bad_) / 2;
    return enough;
  }
  double found() const noexcept { return good_; }

 private:
  double from_, attainment_, rate_, good_ = 0, bad_ = 0;
};

}  // namespace cokv::workload

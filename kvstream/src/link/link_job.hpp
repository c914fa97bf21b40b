// One put or get of a caller as the frames it was cut into: complete when all of them are answered.
#pragma once

#include <memory>

#include "cokv/runtime/detail/initiate.hpp"

namespace cokv::detail {

class link_job {
 public:
  explicit link_job(const prepared_executor& ex) : ex_(ex) {}

  void begin_frame() noexcept { ++left_; }
  // The first error is the job's.
  void end_frame(error_code ec) {
    if (ec && !error_) error_ = ec;
    --left_;
    if (done()) waiters_.complete_all({});
  }
  // No more frames will begin.
  void seal(error_code ec) {
    if (ec && !error_) error_ = ec;
    sealed_ = true;
    if (done()) waiters_.complete_all({});
  }

  bool done() const noexcept { return sealed_ && left_ == 0; }
  error_code error() const noexcept { return error_; }

  template <class Token>
  auto async_wait(Token&& token) {
    return initiate<void(error_code)>(std::forward<Token>(token), ex_, [this](beginning<void(error_code)>& begin) {
      if (done()) return begin.complete({});
      waiters_.push_back(begin.wait());
    });
  }

 private:
  const prepared_executor& ex_;
  std::size_t left_ = 0;
  bool sealed_ = false;
  error_code error_;
  operation_list<operation<void(error_code)>> waiters_;
};

}  // namespace cokv::detail

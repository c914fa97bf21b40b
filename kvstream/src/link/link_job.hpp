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
    settle();
  }
  // No more frames will begin.
  void seal(error_code ec) {
    if (ec && !error_) error_ = ec;
    sealed_ = true;
    settle();
  }
  // It is a frame of another job from here on.
  void join(std::shared_ptr<link_job> whole) {
    whole->begin_frame();
    whole_ = std::move(whole);
    settle();
  }

  bool idle() const noexcept { return left_ == 0; }
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
  void settle() {
    if (!done()) return;
    waiters_.complete_all({});
    if (const auto whole = std::exchange(whole_, nullptr)) whole->end_frame(error_);
  }

  const prepared_executor& ex_;
  std::size_t left_ = 0;
  bool sealed_ = false;
  error_code error_;
  operation_list<operation<void(error_code)>> waiters_;
  std::shared_ptr<link_job> whole_;
};

// A frame of the job that ends when what is returned is gone. Null of null.
inline std::shared_ptr<void> part_of(const std::shared_ptr<link_job>& job) {
  if (!job) return nullptr;
  job->begin_frame();
  return {job.get(), [job](void*) { job->end_frame({}); }};
}

}  // namespace cokv::detail

// A context's communicators: polled while NCCL has something in progress, and looked at from time to time while
// something is under way, since no event of a device tells of an error of NCCL, or of a peer that is silent.
#pragma once

#include <memory>
#include <vector>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/progress.hpp"

namespace cokv::detail {

class nccl_side;

class nccl_port final : public asio::execution_context::service, public progress_source {
 public:
  inline static asio::execution_context::id id;
  explicit nccl_port(asio::execution_context& context) : service(context) {}
  static nccl_port& of(const asio::any_io_executor& ex);

  // It is kept until it is over.
  void add(std::shared_ptr<nccl_side> side) { sides_.push_back(std::move(side)); }
  // A side has begun something, or is over.
  void touched();
  clock& time() const noexcept { return *time_; }

  std::size_t poll() override;
  bool awaited() const override;
  void arm() override { look_later(); }

 private:
  void shutdown() override;
  void look_later();
  void forget();  // those that are over

  std::vector<std::shared_ptr<nccl_side>> sides_;
  clock* time_ = nullptr;
  bool polling_ = false;
  bool asleep_ = false;
  time_point wakes_at_{};
  std::uint64_t turn_ = 0;
  duration pause_{};
};

}  // namespace cokv::detail

// One side of a pair of ranks, from the first call of NCCL to the last: two lanes, made one after the other, tried with
// a byte each, then used, then finalized or aborted. Whatever NCCL says or doesn't say in time ends both lanes.
//
//     connecting -> greeting -> ready -> closing -> over
//          \___________\__________\_________\____-> (abort, once) -> draining -> over
#pragma once

#include <array>
#include <memory>

#include "cokv/runtime/error.hpp"
#include "link/nccl/nccl_lane.hpp"
#include "link/nccl/nccl_side.hpp"

namespace cokv::detail {

class nccl_session final : public nccl_side {
 public:
  struct limits {
    duration set_up, stall;
  };
  // ids: of the lane on which rank 0 sends, and of the other.
  nccl_session(const nccl_api& api, device on, const std::array<ncclUniqueId, 2>& ids, int rank, limits most);
  error_code start();

  event connected() const { return {connected_, 1}; }
  event closed() const { return {closed_, 1}; }
  // What ended it; errc::closed from close() on.
  error_code status() const noexcept {
    return failure_ ? failure_ : closing_ ? error_code(errc::closed) : error_code();
  }
  void close();
  void fail(error_code why);

  nccl_lane& out() noexcept { return *lanes_[static_cast<std::size_t>(rank_)]; }
  nccl_lane& in() noexcept { return *lanes_[static_cast<std::size_t>(1 - rank_)]; }
  std::uint64_t begin(nccl_lane& lane, std::vector<buffer> pieces);

  std::size_t poll() override;
  bool in_progress() const override;
  bool under_way() const override;
  bool over() const noexcept override { return phase_ == phase::over; }
  void shut_down() override;

 private:
  enum class phase { connecting, greeting, ready, closing, draining, over };

  void returned(ncclResult_t status) override;
  std::size_t advance();
  std::size_t connect();
  std::size_t greet();
  std::size_t finalize();
  std::size_t pump(nccl_lane& lane);
  void settled(nccl_lane& lane, std::uint64_t place, error_code ec);
  void abort();
  void abort_both();
  void drain();
  void drained();

  const int rank_;
  const limits limits_;
  const std::array<ncclUniqueId, 2> ids_;
  const std::shared_ptr<timeline_core> connected_, closed_;
  std::array<std::unique_ptr<nccl_lane>, 2> lanes_;
  buffer byte_;
  phase phase_ = phase::connecting;
  std::size_t at_ = 0;  // the lane that is being made, tried or finalized
  bool begun_ = false;  // with that
  bool closing_ = false, aborted_ = false;
  int draining_ = 0;
  error_code failure_;
};

}  // namespace cokv::detail

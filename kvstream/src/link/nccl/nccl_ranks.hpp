// One rank of a communicator whose ranks add up, from the first call of NCCL to the last, on a stream that others use too. What
// NCCL puts there comes behind what is there, and nobody may put anything behind it before NCCL says that it has.
//
//     connecting -> greeting -> ready
//          \___________\__________\____-> (abort, once) -> draining -> over
#pragma once

#include <cstdint>
#include <memory>

#include "cokv/runtime/stream.hpp"
#include "link/nccl/nccl_side.hpp"

namespace cokv::detail {

class nccl_ranks final : public nccl_side {
 public:
  struct limits {
    duration set_up, stall;
  };
  nccl_ranks(const nccl_api& api, device on, stream behind, const ncclUniqueId& id, int rank, int size, limits most);
  error_code start();

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  event connected() const { return {connected_, 1}; }  // failed: as closed()
  event closed() const { return {closed_, 1}; }        // nothing of it is on the stream any more
  error_code status() const noexcept { return failure_; }
  void fail(error_code why);

  // One at a time; behind a failure, in_use or closed no place is taken. At the event the sum is on the stream, or, failed, nothing of it any more.
  result<event> begin(buffer floats);

  std::size_t poll() override;
  bool in_progress() const override;
  bool under_way() const override;
  bool over() const noexcept override { return phase_ == phase::over; }
  void shut_down() override;

 private:
  enum class phase { connecting, greeting, ready, draining, over };

  void returned(ncclResult_t status) override;
  std::size_t advance();
  std::size_t connect();
  std::size_t greet();
  std::size_t pump();
  void issue(buffer floats);
  error_code put_mark();
  void settled(error_code ec);
  void abort();
  void abort_comm();
  void drain();
  void drained();

  stream on_;
  const ncclUniqueId id_;
  const int rank_, size_;
  const limits limits_;
  const std::shared_ptr<timeline_core> connected_, closed_;
  const std::shared_ptr<timeline_core> issued_;  // how many are on the stream
  void* native_ = nullptr;                       // the stream, for NCCL
  ncclComm_t comm_ = nullptr;
  buffer word_;  // added up once, by which NCCL connects the ranks
  phase phase_ = phase::connecting;
  bool begun_ = false;  // with making or trying it
  bool aborted_ = false;
  bool issuing_ = false;         // NCCL is at the last one
  buffer floats_;                // of that
  std::uint64_t asked_ = 0;      // sums, the greeting among them
  std::uint64_t unsettled_ = 0;  // of those that are on the stream
  error_code failure_;
};

}  // namespace cokv::detail

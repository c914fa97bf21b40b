// One direction of a pair of ranks: a communicator that only sends or only receives, on a stream of its own. Transfers
// take places; NCCL puts one after the other on the stream, as many as wait in a group. For a communicator that doesn't block
// NCCL 2.28 to 2.32 starts a thread for each group (100 us on an H200), so there had better be few.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cokv/runtime/stream.hpp"
#include "link/nccl/nccl_api.hpp"

namespace cokv::detail {

class nccl_lane {
 public:
  nccl_lane(const nccl_api& api, const ncclUniqueId& id, stream on, bool sends);

  // Where NCCL makes the communicator, on another thread, and takes it back.
  ncclComm_t& comm() noexcept { return comm_; }
  const ncclUniqueId& id() const noexcept { return id_; }
  ncclResult_t state() const { return nccl_state(api_, comm_); }

  // Takes the next place: its pieces are none of them empty, and referenced until nothing uses them.
  std::uint64_t begin(std::vector<buffer> pieces);
  event at(std::uint64_t place) const { return {line_, place}; }
  event next_done() const { return at(line_->value() + 1); }
  std::uint64_t open_places() const noexcept { return begun_ - line_->value(); }
  bool idle() const noexcept { return open_places() == 0; }
  bool issuing() const noexcept { return issuing_ > 0; }  // NCCL is at it: nobody else may use the stream

  // What NCCL put on the stream, up to this place, ready when the device is done with it.
  struct mark {
    std::uint64_t place;
    event done;
  };
  // Gets on with the transfers that wait: the next mark, or none while NCCL is at it, or an error.
  result<std::optional<mark>> pump();
  void done(std::uint64_t place) { line_->advance(place); }

  // Places that NCCL has not heard of fail at once; no others are taken.
  void refuse(error_code why);
  // Ready when nothing that was ever put on the stream runs any more. After the communicator was aborted.
  event last() const { return on_.record(); }
  // Then: the other places fail, and memory is given back.
  void end(error_code why);

 private:
  error_code issue();

  const nccl_api& api_;
  const ncclUniqueId id_;
  stream on_;
  const bool sends_;
  ncclComm_t comm_ = nullptr;
  std::size_t issuing_ = 0;  // the first of those that wait
  std::deque<std::vector<buffer>> waiting_;
  std::uint64_t begun_ = 0;
  const std::shared_ptr<timeline_core> line_;  // how many are done
};

}  // namespace cokv::detail

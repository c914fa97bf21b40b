#include "link/nccl/nccl_lane.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_pieces = 64;  // of a group, but for a transfer that has more

}  // namespace

nccl_lane::nccl_lane(const nccl_api& api, const ncclUniqueId& id, stream on, bool sends)
    : api_(api),
      id_(id),
      on_(std::move(on)),
      sends_(sends),
      line_(std::make_shared<timeline_core>(on_.get_executor())) {}

std::uint64_t nccl_lane::begin(std::vector<buffer> pieces) {
  waiting_.push_back(std::move(pieces));
  return ++begun_;
}

// Not inside launch_native(): what that writes behind the call could come before what NCCL is still putting there.
error_code nccl_lane::issue() {
  auto* native = static_cast<cudaStream_t>(on_.native_handle());
  if (!native) return on_.status() ? on_.status() : error_code(errc::closed);
  if (auto ec = nccl_error(api_.GroupStart())) return ec;
  error_code failed;
  for (std::size_t pieces = 0; !failed && issuing_ < waiting_.size() && pieces < most_pieces;) {
    const auto& next = waiting_[issuing_++];  // whatever is said from here on, some of it may be on the stream
    pieces += next.size();
    for (const auto& p : next) {
      failed = nccl_error(sends_ ? api_.Send(p.data(), p.size(), ncclInt8, 1, comm_, native)
                                 : api_.Recv(p.data(), p.size(), ncclInt8, 0, comm_, native));
      if (failed) break;
    }
  }
  const auto ended = nccl_error(api_.GroupEnd());  // also after a failure: groups are the thread's
  return failed ? failed : ended;
}

result<std::optional<nccl_lane::mark>> nccl_lane::pump() {
  if (waiting_.empty()) return std::optional<mark>();
  if (issuing_ == 0)
    if (auto ec = issue()) return ec;
  const auto now = state();
  if (now == ncclInProgress) return std::optional<mark>();
  if (auto ec = nccl_error(now)) return ec;
  std::vector<buffer> pieces;
  for (std::size_t i = 0; i < issuing_; ++i) pieces.insert(pieces.end(), waiting_[i].begin(), waiting_[i].end());
  if (auto ec = on_.launch_native(sends_ ? "nccl send" : "nccl receive", pieces, [](void*) {})) return ec;
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(std::exchange(issuing_, 0)));
  return std::optional(mark{begun_ - waiting_.size(), on_.record()});
}

void nccl_lane::refuse(error_code why) {
  const auto first = begun_ - waiting_.size() + issuing_ + 1;
  waiting_.resize(issuing_);
  line_->fail(first, why);
}

void nccl_lane::end(error_code why) {
  waiting_.clear();
  line_->fail(line_->value() + 1, why);
}

}  // namespace cokv::detail

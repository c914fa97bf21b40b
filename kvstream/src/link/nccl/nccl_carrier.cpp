// A pair of ranks as what carries a link's bytes.
#include <algorithm>
#include <cstring>
#include <optional>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/nccl/nccl_network.hpp"
#include "link/nccl/nccl_pair.hpp"
#include "link/window_state.hpp"

namespace cokv::detail {
namespace {

static_assert(sizeof(nccl_id) == nccl_meeting_bytes);

class nccl_carrier final : public link_carrier {
 public:
  nccl_carrier(nccl_api api, device on, const nccl_id& id, int rank, nccl_pair_options options,
               std::unique_ptr<device_reach> chunks)
      : api_(api), on_(std::move(on)), id_(id), rank_(rank), options_(options), chunks_(std::move(chunks)) {}

  awaitable<error_code> meet() override {
    auto pair = co_await nccl_pair::connect(api_, on_, id_, rank_, options_);
    if (!pair) co_return pair.error();
    if (aborted_) co_return aborted_;
    pair_.emplace(std::move(*pair));
    co_return error_code();
  }
  bool takes(const std::vector<buffer>& pieces) const override {
    return !pieces.empty() && std::ranges::all_of(pieces, [](const buffer& b) {
      return b.kind() == memory_kind::device || b.kind() == memory_kind::exportable;
    });
  }
  device_reach& reach() noexcept override { return *chunks_; }

  void send(buffer piece, std::function<void()> begun, done over) override {
    pair_->async_send({std::move(piece)}, {}, [begun = std::move(begun)](std::uint64_t) { begun(); }, std::move(over));
  }
  void receive(buffer piece, done over) override { pair_->async_receive({std::move(piece)}, std::move(over)); }
  void abort(error_code why) override {
    if (aborted_) return;
    aborted_ = why;
    if (pair_) pair_->abort(why);
  }

 private:
  const nccl_api api_;
  const device on_;
  const nccl_id id_;
  const int rank_;
  const nccl_pair_options options_;
  const std::unique_ptr<device_reach> chunks_;
  std::optional<nccl_pair> pair_;
  error_code aborted_;
};

}  // namespace

error_code check_nccl(const window_registry& windows) {
  if (auto api = nccl_api::load(); !api) return api.error();
  const bool cuda = windows.reach && windows.reach->on().name().starts_with("cuda:");
  return cuda ? error_code() : make_error_code(errc::wrong_device);
}

awaitable<result<std::vector<std::byte>>> make_nccl_meeting(std::shared_ptr<window_registry> windows) {
  if (auto ec = check_nccl(*windows)) co_return ec;
  auto id = co_await make_nccl_id(*nccl_api::load(), windows->reach->on());
  if (!id) co_return id.error();
  const auto bytes = std::as_bytes(std::span(*id));
  co_return std::vector<std::byte>(bytes.begin(), bytes.end());
}

// NCCL may take seconds to bring two ranks together, many times what a greeting does.
result<std::unique_ptr<link_carrier>> make_nccl_carrier(const window_registry& windows,
                                                        const std::vector<std::byte>& meeting, int rank,
                                                        const link_options& options) {
  if (auto ec = check_nccl(windows)) return ec;
  if (meeting.size() != nccl_meeting_bytes) return errc::protocol;
  nccl_id id;
  std::memcpy(&id, meeting.data(), meeting.size());
  auto on = windows.reach->on();
  auto chunks = device_reach::make(on, {.chunk = options.chunk, .count = windows.reach->count()}, memory_kind::device);
  if (!chunks) return chunks.error();
  constexpr auto longest = duration::max() / 8;
  const nccl_pair_options limits{.set_up = 6 * std::min(options.greeting, longest), .stall = options.silence};
  return std::unique_ptr<link_carrier>(
      std::make_unique<nccl_carrier>(*nccl_api::load(), std::move(on), id, rank, limits, std::move(*chunks)));
}

}  // namespace cokv::detail

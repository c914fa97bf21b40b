#include "cokv/kvstream/nccl_group.hpp"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "cokv/runtime/compute.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/nccl/nccl_ranks.hpp"

namespace cokv {
namespace {

using detail::nccl_api;
using detail::nccl_error;
using detail::nccl_ranks;

bool is_cuda(const device& d) { return d && d.name().starts_with("cuda:"); }

bool takes_ranks_of_one_gpu(int version) {
  const char* told = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return version >= 23100 && told && std::string_view(told) == "1";
}

// Whoever cancels: then `cancelled` is called, once.
template <class F>
awaitable<void> wait_out(event e, F cancelled) {
  const bool throwing = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  for (bool told = false; !e.ready();) {
    (void)co_await e.async_wait(asio::as_tuple(asio::deferred));
    if (!e.ready() && !std::exchange(told, true)) cancelled();
  }
  co_await asio::this_coro::throw_if_cancelled(throwing);
}

class group_of_gpus final : public nccl_group {
 public:
  explicit group_of_gpus(std::shared_ptr<nccl_ranks> ranks) : ranks_(std::move(ranks)) {}
  ~group_of_gpus() override { ranks_->fail(errc::closed); }

  std::uint32_t size() const noexcept override { return static_cast<std::uint32_t>(ranks_->size()); }
  std::uint32_t rank() const noexcept override { return static_cast<std::uint32_t>(ranks_->rank()); }
  bool useful() const noexcept override { return !ranks_->status(); }
  void abort(error_code why) override { ranks_->fail(why); }

  awaitable<error_code> all_reduce(buffer floats) override {
    if (floats.size() % sizeof(float) != 0) co_return errc::invalid_argument;
    if (auto ec = ranks_->status()) co_return ec;
    if (floats.empty()) co_return error_code();
    if (floats.host_accessible()) co_return errc::wrong_device;
    const auto ranks = ranks_;
    const auto there = ranks->begin(std::move(floats));
    if (!there) co_return there.error();
    if (!there->ready()) co_await wait_out(*there, [&ranks] { ranks->fail(asio::error::operation_aborted); });
    co_return there->status();
  }

  awaitable<void> closed() override {
    const auto ranks = ranks_;
    co_await wait_out(ranks->closed(), [] {});
  }

 private:
  const std::shared_ptr<nccl_ranks> ranks_;
};

}  // namespace

awaitable<result<nccl_gpu>> nccl_gpu_of(device where) {
  if (!is_cuda(where)) co_return errc::wrong_device;
  co_return co_await on(where, [name = std::string(where.name())]() -> result<nccl_gpu> {
    const auto api = nccl_api::load();
    if (!api) return api.error();
    nccl_gpu out;
    int version = 0;
    if (auto ec = nccl_error(api->GetVersion(&version))) return ec;
    out.version = static_cast<std::uint32_t>(version);
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, detail::cuda_ordinal(name)) != cudaSuccess)
      return (void)cudaGetLastError(), make_error_code(errc::device_failed);
    static_assert(sizeof properties.uuid == sizeof out.uuid);
    std::memcpy(out.uuid.data(), &properties.uuid, sizeof out.uuid);
    out.shares = takes_ranks_of_one_gpu(version);
    return out;
  });
}

awaitable<result<std::vector<std::byte>>> make_nccl_group_id(device where) {
  if (!is_cuda(where)) co_return errc::wrong_device;
  co_return co_await on(where, []() -> result<std::vector<std::byte>> {
    const auto api = nccl_api::load();
    if (!api) return api.error();
    ncclUniqueId id{};
    if (auto ec = nccl_error(api->GetUniqueId(&id))) return ec;
    const auto bytes = std::as_bytes(std::span(&id, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  });
}

awaitable<result<std::shared_ptr<nccl_group>>> nccl_group::join(device where, stream behind, nccl_place place,
                                                                nccl_group_options options) {
  if (!is_cuda(where)) co_return errc::wrong_device;
  const auto api = nccl_api::load();
  if (!api) co_return api.error();
  ncclUniqueId id{};
  if (place.id.size() != sizeof id || place.rank >= place.size || place.size > std::numeric_limits<int>::max())
    co_return errc::invalid_argument;
  std::memcpy(&id, place.id.data(), sizeof id);
  detail::use_texts_of(*api);
  auto ranks =
      std::make_shared<nccl_ranks>(*api, std::move(where), std::move(behind), id, static_cast<int>(place.rank),
                                   static_cast<int>(place.size), nccl_ranks::limits{options.set_up, options.stall});
  if (auto ec = ranks->start()) co_return ec;
  std::shared_ptr<nccl_group> made = std::make_shared<group_of_gpus>(ranks);  // abandoned, it is aborted
  if (auto there = co_await ranks->connected().async_wait(as_result); !there) co_return there.error();
  co_return made;
}

}  // namespace cokv

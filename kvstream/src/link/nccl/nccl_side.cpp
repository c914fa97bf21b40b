#include "link/nccl/nccl_side.hpp"

#include <cuda_runtime_api.h>

#include <charconv>

namespace cokv::detail {

int cuda_ordinal(std::string_view name) {
  int n = -1;
  if (name.starts_with("cuda:")) std::from_chars(name.data() + 5, name.data() + name.size(), n);
  return n;
}

nccl_side::nccl_side(const nccl_api& api, device on)
    : api_(api), device_(std::move(on)), ordinal_(cuda_ordinal(device_.name())), back_(device_.get_executor()) {}

void nccl_side::aside(unique_function<ncclResult_t()> call) {
  busy_ = true;
  auto said = std::make_shared<std::promise<void>>();
  call_ = said->get_future();
  const bool taken =
      device_.backend()->submit([self = shared_from_this(), back = back_, said, call = std::move(call)]() mutable {
        const ncclResult_t status = call();
        back.post([self = std::move(self), status] {
          self->busy_ = false;
          self->returned(status);
        });
        said->set_value();
      });
  if (!taken) said->set_value();  // the context is going
}

ncclResult_t nccl_side::make(ncclComm_t& comm, int ranks, const ncclUniqueId& id, int rank) const {
  if (cudaSetDevice(ordinal_) != cudaSuccess) return (void)cudaGetLastError(), ncclUnhandledCudaError;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return api_.CommInitRankConfig(&comm, ranks, id, rank, &config);
}

void nccl_side::keep_time(duration most) {
  const auto now = port().time().now();
  expires_ = most > time_point::max() - now ? time_point::max() : now + most;
}

bool nccl_side::late() const { return port().time().now() >= expires_; }

}  // namespace cokv::detail

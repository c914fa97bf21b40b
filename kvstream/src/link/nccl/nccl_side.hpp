// A process's side of communicators on one device, as the port looks after it. NCCL's calls that may block run on the
// device's thread, one at a time, and nothing else is called meanwhile; what is awaited of it comes in time, or is late.
#pragma once

#include <future>
#include <memory>
#include <string_view>

#include "cokv/runtime/detail/kernels_wait.hpp"
#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/detail/unique_function.hpp"
#include "cokv/runtime/device.hpp"
#include "link/nccl/nccl_api.hpp"
#include "link/nccl/nccl_port.hpp"

namespace cokv::detail {

int cuda_ordinal(std::string_view device_name);  // -1: it is none of CUDA's

class nccl_side : public std::enable_shared_from_this<nccl_side> {
 public:
  virtual ~nccl_side() = default;
  const asio::any_io_executor& get_executor() const noexcept { return device_.get_executor(); }

  virtual std::size_t poll() = 0;
  virtual bool in_progress() const = 0;  // a poll may find something
  virtual bool under_way() const = 0;    // somebody waits for something
  virtual bool over() const noexcept = 0;
  virtual void shut_down() = 0;  // the context goes: waits for NCCL

 protected:
  nccl_side(const nccl_api& api, device on);

  nccl_port& port() const { return nccl_port::of(get_executor()); }
  void aside(unique_function<ncclResult_t()> call);
  virtual void returned(ncclResult_t status) = 0;  // what was called aside
  // Called aside. In progress when it returns.
  ncclResult_t make(ncclComm_t& comm, int ranks, const ncclUniqueId& id, int rank) const;

  void keep_time(duration most);  // from now on
  bool late() const;

  const kernels_wait kernels_;  // NCCL's, for the other ranks
  const nccl_api api_;
  device device_;
  const int ordinal_;
  bool busy_ = false;  // the device's thread is in a call of NCCL
  std::shared_future<void> call_;

 private:
  const mailbox back_;
  time_point expires_{};
};

}  // namespace cokv::detail

// transfer_group: the transfers of one scope into one sink, with a bound on how many are in flight. flush() and
// gather() return as soon as there is room and the transfer has begun; with() joins them all, and the first failure
// cancels the rest, which drain.
//
//     auto verdict = co_await with(transfer_group{to, {.in_flight = 128}}, [&](auto& out) -> awaitable<void> {
//       for (int layer : model.layers()) {
//         event computed = model.forward(layer, batch, compute);           // enqueued, not waited for
//         co_await out.gather(view, kv.slice(layer, batch), offset(layer), after(computed));
//       }
//     });
//     if (!verdict) co_return verdict.error();
#pragma once

#include <memory>

#include "cokv/kvstream/gather.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv {

struct transfer_group_options {
  std::size_t in_flight = 128;  // transfers begun and not ended
  completion_level level = completion_level::visible;
  const packing* through = nullptr;  // for gather()
};

class transfer_group : public task_group {
 public:
  explicit transfer_group(sink to, transfer_group_options options = {});

  // Waits for room, begins the transfer, returns. In a scope that has failed it throws operation_aborted.
  awaitable<void> flush(buffer chunk, std::uint64_t offset, event begin = {});
  awaitable<void> gather(kv_view from, slice what, std::uint64_t offset, event begin = {});

  // Waits until all transfers begun so far have ended. In a scope that has failed it throws operation_aborted.
  awaitable<void> settled();
  // Waits for the same; then everything becomes visible. The body's last step.
  awaitable<error_code> commit();

  std::uint64_t bytes() const noexcept { return *bytes_; }  // moved so far

 protected:
  // Puts the chunk and waits for it, in the body itself. In a scope that has failed it throws operation_aborted.
  awaitable<void> flush_alone(buffer chunk, std::uint64_t offset, event begin);

 private:
  awaitable<void> begin(awaitable<result<transferred>> transfer);
  void run(awaitable<result<transferred>> transfer, permit turn);

  sink to_;
  transfer_group_options options_;
  detail::prepared_executor executor_;
  std::unique_ptr<semaphore> room_;
  std::shared_ptr<std::uint64_t> bytes_ = std::make_shared<std::uint64_t>(0);
};

}  // namespace cokv

// More microbatches than a device has room for take turns in a few slots of a device pool: swap_schedule.hpp says what to
// move, a swapper moves it, by copies of the device that wait for events and not for the host. The next microbatch comes
// in while one computes; a new token writes only itself out.
//
//     cokv::swapper swap(gpu, device_pool, host_pool, {.slots = 3, .prefetch = 1, .sequences = 4, .blocks = 64});
//     for (std::uint64_t m = 0; m < 8; ++m) (void)swap.add(m);
//     for (;;) {
//       swap_turn turn = co_await swap.async_turn();
//       compute.wait(turn.arrived);                           // the device waits, the host does not
//       launch_step(compute, swap.slot(turn.slot), turn);     // new tokens from position turn.tokens on
//       swap.end(compute.record(), 1);
//     }
//
// |              | async_turn                                                                                   |
// |--------------|----------------------------------------------------------------------------------------------|
// | cancellation | every kind ends the wait; it is still that microbatch's turn, and what moves goes on         |
// | memory       | blocks that a copy reads or writes are held by it, also when the swapper is destroyed        |
// | completes    | the microbatch whose turn it is has a slot, and all its KV is there or on its way: `arrived` |
// | errors       | not_found: there is no microbatch; [1] a copy of this microbatch failed: reported once, then |
// |              | tried again; or another's did that keeps all slots taken; [2] the step that computed it, or  |
// |              | the copy that it waited for, failed: its KV is lost, and this is said until it is removed    |
//
// current() says whose turn failed; remove() passes it by. The others go on in any case: each slot has a stream of its
// own, and a new one when that has failed. Host memory is what the device copies from: pinned, on CUDA. One turn at a
// time, then its end(). The pools outlive the swapper. Not thread-safe; misuse throws std::invalid_argument.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cokv/kvstream/kv_view.hpp"
#include "cokv/kvstream/swap_schedule.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv {

struct swapper_options {
  std::uint32_t slots = 2;
  std::uint32_t prefetch = 1;   // as swap_schedule's
  std::uint32_t sequences = 1;  // of a microbatch, which have equally many tokens
  std::uint32_t blocks = 1;     // of a sequence: for all tokens that it will have
};

// Where the sequences of a microbatch lie, each with a block table.
struct swap_place {
  kv_view view;
  std::vector<std::vector<std::uint32_t>> tables;
};

struct swap_turn {
  std::uint64_t microbatch = 0;
  std::uint32_t slot = 0;
  std::uint32_t tokens = 0;  // of each sequence
  event arrived = {};        // what computes waits for it
};

namespace detail {
struct swapper_state;
using turn_handler = asio::any_completion_handler<void(error_code, swap_turn)>;
}  // namespace detail

class swapper {
 public:
  using microbatch_id = swap_schedule::microbatch_id;

  // Takes the slots' blocks from the device's pool. Throws config_error for options that swap_schedule refuses, no
  // sequences or blocks, pools of different geometries, or a device pool that is too small; system_error where the
  // device gives no stream.
  swapper(device gpu, kv_pool& on_device, kv_pool& on_host, swapper_options options);
  swapper(swapper&&) noexcept = default;
  swapper& operator=(swapper&&) noexcept = default;
  ~swapper();

  // Its first turn comes last. Where it has tokens already, they are written to host(m) before anything is awaited.
  // errc::out_of_memory: the host's pool is too small.
  error_code add(microbatch_id m, std::uint32_t tokens = 0);
  // Not between its turn and its end().
  void remove(microbatch_id m);
  std::optional<microbatch_id> current() const;

  const swap_place& host(microbatch_id m) const;
  const swap_place& slot(std::uint32_t slot) const;

  // void(error_code, swap_turn)
  template <class Token = asio::deferred_t>
  auto async_turn(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, swap_turn)>(
        std::forward<Token>(token), get_executor(), [s = state_](detail::turn_handler h) { turn(s, std::move(h)); });
  }
  // What was computed is in the slot when the event is ready: so many tokens more of each sequence.
  void end(event computed, std::uint32_t new_tokens);

  std::uint64_t bytes_in() const noexcept;  // moved so far
  std::uint64_t bytes_out() const noexcept;
  asio::any_io_executor get_executor() const;

 private:
  static void turn(std::shared_ptr<detail::swapper_state> s, detail::turn_handler h);
  std::shared_ptr<detail::swapper_state> state_;
};

}  // namespace cokv

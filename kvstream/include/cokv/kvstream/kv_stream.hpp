// A batch's KV from the workers of one topology to those of another, layer by layer while it is being computed: each
// worker opens its side with the same route (route.hpp), the receivers' windows are told to the senders as tickets, and
// every leg lands where the receiver keeps those layers and heads, whatever pool, layout or number of ranks it has.
//
//     auto in = inbound_stream::open(windows, side).value();                    // a receiver
//     co_await link.async_send(encode(in.tickets(sender)));                     // to each of its senders
//     co_await async_stream_in(in, {{sender, link}});                           // all of it is there, and right
//
//     std::vector<leg_target> to = targets_of(decode_tickets(message).value(), link);   // a sender, from all its receivers
//     auto verdict = co_await with(outbound_stream(side, to), [&](auto& out) -> awaitable<void> {
//       for (std::uint32_t layer = 0; layer < mine; ++layer)                    // as the worker numbers its layers
//         co_await out.layer(layer, after(model.forward(layer, batch)));
//       co_await out.commit();
//     });
//
// |              | outbound_stream                                | async_stream_in                              |
// |--------------|------------------------------------------------|----------------------------------------------|
// | cancellation | layer() and commit(): as transfer_group;       | every kind ends the wait; the windows stay    |
// |              | nothing of it is in flight when with() returns |                                              |
// | memory       | referenced until sent; a block freed before is | referenced until the stream is destroyed      |
// |              | errc::stale_reference                          |                                              |
// | completes    | commit(): every receiver has and has verified  | every leg was committed by its sender, nobody |
// |              | all of it                                      | can write it any more, no block was freed     |
// | errors       | of the first transfer that failed              | errc::unavailable: a link went down first;    |
// |              |                                                | stale_reference                              |
//
// A sender that gives up closes its link, or tells its receiver by a message: nothing else ends the receiver's wait.
// A receiver must not read what did not complete with success. Both sides belong to one context each.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cokv/kvstream/gather.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/kvstream/route.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv {

// Where a worker keeps a sequence of the batch: its block table, and how many tokens there are.
struct stream_sequence {
  std::vector<std::uint32_t> blocks;
  std::uint32_t tokens = 0;
};

// What a worker brings to a stream. `shape` is its pool's (placement::shape()), `sequences` are all of the batch, equal
// on both sides but for their blocks.
struct stream_side {
  route way;
  worker self;
  geometry shape;
  kv_view memory;
  std::vector<stream_sequence> sequences;
};

// A leg's place at its receiver: what is told to its sender. 44 bytes.
struct leg_ticket {
  std::uint64_t route = 0;  // its digest
  std::uint32_t leg = 0;
  std::uint64_t tokens = 0;  // of the leg's sequences, digested: both sides must mean as many
  window_ref landing;
  friend bool operator==(const leg_ticket&, const leg_ticket&) = default;
};
link_message encode(std::span<const leg_ticket> tickets);
// errc::protocol for anything else.
result<std::vector<leg_ticket>> decode_tickets(std::span<const std::byte> bytes);

// A leg's place as its sender sees it.
struct leg_target {
  leg_ticket ticket;
  sink to;
};
std::vector<leg_target> targets_of(const std::vector<leg_ticket>& tickets, const peer_link& link);

namespace detail {
struct inbound_state;
struct outbound_state;
}  // namespace detail

// The receiver's side: a window for each leg that has bytes for it. Cheap to copy; the last copy revokes the windows.
class inbound_stream {
 public:
  // errc::invalid_argument: a side that does not fit together, or memory that two parts of the stream would share;
  // stale_reference, out_of_range, wrong_device, queue_full: see kv_view and window_table.
  static result<inbound_stream> open(window_table windows, stream_side side);

  std::vector<leg_ticket> tickets(worker from) const;
  std::uint64_t bytes() const noexcept;  // that come in all
  asio::any_io_executor get_executor() const;

  const std::shared_ptr<detail::inbound_state>& state() const noexcept { return state_; }

 private:
  explicit inbound_stream(std::shared_ptr<detail::inbound_state> s) : state_(std::move(s)) {}
  std::shared_ptr<detail::inbound_state> state_;
};

using stream_peers = std::vector<std::pair<worker, peer_link>>;
namespace detail {
void stream_in(std::shared_ptr<inbound_state> in, stream_peers from, done_handler h);
}

// void(error_code). The end of a link to a sender whose legs are not all there ends the wait.
template <class Token = asio::deferred_t>
auto async_stream_in(const inbound_stream& in, stream_peers from, Token&& token = Token()) {
  return detail::initiate_erased<void(error_code)>(
      std::forward<Token>(token), in.get_executor(),
      [s = in.state(), from](detail::done_handler h) { detail::stream_in(s, from, std::move(h)); });
}

struct outbound_options {
  std::size_t in_flight = 64;        // parts of legs: a layer of a sequence each
  const packing* through = nullptr;  // as gather_options
};

// The sender's side, a group for with().
class outbound_stream : public task_group {
 public:
  // A side or target that does not fit makes the first layer() or commit() fail: errc::invalid_argument for a side,
  // errc::protocol for targets of another route or size, or not one for each leg that has bytes.
  outbound_stream(stream_side side, std::vector<leg_target> targets, outbound_options options = {});

  // Sends a layer of this worker's, of all sequences or of those of one of its microbatches. Returns as soon as there
  // is room and its transfers have begun. In a scope that has failed it throws operation_aborted.
  awaitable<void> layer(std::uint32_t local, event begin = {}, std::optional<std::uint32_t> microbatch = {});
  // Waits for all transfers, then tells the receivers. errc::invalid_argument when parts were not sent, or twice. The
  // body's last step.
  awaitable<error_code> commit();

  std::uint64_t bytes() const noexcept;  // moved so far

 private:
  std::shared_ptr<detail::outbound_state> state_;
};

}  // namespace cokv

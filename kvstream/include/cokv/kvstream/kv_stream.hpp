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
// A prompt that is computed in chunks goes out as it is computed: tokens() sends a chunk's part of a layer, whole blocks
// of it, one behind the other. What a receiver has of a sequence already, it says in stream_sequence::first, and neither
// side moves.
//
// |              | outbound_stream                                | async_stream_in                              |
// |--------------|------------------------------------------------|----------------------------------------------|
// | cancellation | layer(), tokens(), commit(): as                | every kind ends the wait; the windows stay,   |
// |              | transfer_group; nothing of it is in flight     | until async_revoke                            |
// |              | when with() returns                            |                                              |
// | memory       | referenced until sent; a block freed before is | referenced until the stream is destroyed      |
// |              | errc::stale_reference                          |                                              |
// | completes    | commit(): every receiver has and has verified  | every leg was committed by its sender, nobody |
// |              | all of it                                      | can write it any more, no block was freed     |
// | errors       | of the first transfer that failed              | errc::unavailable: a link went down first;    |
// |              |                                                | stale_reference                              |
//
// A sender that gives up closes its link, or tells its receiver by a message: nothing else ends the receiver's wait.
// A receiver must not read what did not complete with success, nor give its memory to others before the windows are
// revoked: inbound_stream::async_revoke. Both sides belong to one context each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cokv/kvstream/converted.hpp"
#include "cokv/kvstream/gather.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/kvstream/route.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv {

// Where a worker keeps a sequence of the batch: its block table, how many tokens there are, and how many of them, from
// the first, the receiver has: whole blocks, or all. Those don't move.
struct stream_sequence {
  std::vector<std::uint32_t> blocks;
  std::uint32_t tokens = 0;
  std::uint32_t first = 0;
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
  std::uint64_t tokens = 0;  // of the leg's sequences, digested: both sides must mean the same ones
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
struct outbound_stretch;
}  // namespace detail

// The receiver's side: a window for each leg that has bytes for it. Cheap to copy; the last copy revokes the windows.
class inbound_stream {
 public:
  // errc::invalid_argument: a side that does not fit together, or memory that two parts of the stream would share;
  // stale_reference, out_of_range, wrong_device, queue_full: see kv_view and window_table.
  static result<inbound_stream> open(window_table windows, stream_side side);

  std::vector<leg_ticket> tickets(worker from) const;
  std::vector<leg_ticket> tickets() const;  // for all senders
  std::uint64_t bytes() const noexcept;     // that come in all
  std::uint64_t arrived() const noexcept;   // of them, verified so far
  asio::any_io_executor get_executor() const;

  // void(error_code): no sender writes into any of the windows from here on, and none can when it completes, as
  // window::async_revoke: whoever gives up on a stream awaits it before the memory is another's. All are revoked at once
  // and stay so, however the wait ends. An async_stream_in that waits meanwhile ends with errc::closed.
  template <class Token = asio::deferred_t>
  auto async_revoke(Token&& token = Token()) const;

  const std::shared_ptr<detail::inbound_state>& state() const noexcept { return state_; }

 private:
  explicit inbound_stream(std::shared_ptr<detail::inbound_state> s) : state_(std::move(s)) {}
  std::shared_ptr<detail::inbound_state> state_;
};

using stream_peers = std::vector<std::pair<worker, peer_link>>;
namespace detail {
void stream_in(std::shared_ptr<inbound_state> in, stream_peers from, done_handler h);
void stream_revoke(std::shared_ptr<inbound_state> in, done_handler h);
}  // namespace detail

template <class Token>
auto inbound_stream::async_revoke(Token&& token) const {
  return detail::initiate_erased<void(error_code)>(
      std::forward<Token>(token), get_executor(),
      [s = state_](detail::done_handler h) { detail::stream_revoke(s, std::move(h)); });
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
  // Another element type at the receivers, whose route has that one too: all planes' is `from`, and each element comes
  // there as `to`. What has no value there fails the scope with errc::out_of_range.
  std::optional<conversion> convert = {};
  // Called whenever more of a sequence's leading tokens are there: how many, counted from its start, which the receivers
  // have, verified, of all that this worker sends of them. Layers with a window keep, and are sent, only its tokens. It
  // runs within the stream's scope, and must not throw.
  std::function<void(std::uint32_t sequence, std::uint32_t tokens)> settled = {};
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
  // Of one sequence, the part of a layer at these positions: one token at the least, from where the layer's last part
  // ended (at the start, stream_sequence::first) to the end of a block, or of the sequence. Anything else fails the
  // scope with errc::invalid_argument. Otherwise as layer().
  awaitable<void> tokens(std::uint32_t local, std::uint32_t sequence, index_range positions, event begin = {});
  // Waits for all transfers, then tells the receivers. errc::invalid_argument when parts were not sent, or twice. The
  // body's last step.
  awaitable<error_code> commit();

  // Moved so far, as the receivers have them. Each transfer is a span of the context's trace too, on the track "KV to peers",
  // from when its KV was computed.
  std::uint64_t bytes() const noexcept;

 private:
  awaitable<void> send(std::vector<detail::outbound_stretch> all, event begin);
  awaitable<void> refuse();

  std::shared_ptr<detail::outbound_state> state_;
};

}  // namespace cokv

// A link without its I/O: what its frames mean. Knows the peer's requests, which touch our windows, and ours, which the
// peer answers; enforces the credits that were agreed on. Lanes, the connections, carry the frames.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/kvstream/transfer.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/detail/background.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "link/borrowed_windows.hpp"
#include "link/hello.hpp"
#include "link/link_carrier.hpp"
#include "link/link_job.hpp"
#include "link/link_parser.hpp"
#include "link/send_queue.hpp"
#include "link/window_state.hpp"

namespace cokv::detail {

class link_session;

// What a session asks of a connection.
class link_lane_base {
 public:
  virtual ~link_lane_base() = default;
  virtual void send(outgoing_frame frame) = 0;
  virtual void send(const link_header& header, buffer payload) = 0;    // of one piece
  virtual void answer(std::uint64_t request, std::uint32_t code) = 0;  // of the peer's: done
  virtual bool withdraw(link_type type, std::uint64_t request) = 0;    // not begun, and now never sent
  virtual std::uint64_t queued() const = 0;                            // bytes
  virtual bool up() const = 0;                                         // takes more
  // What comes in for a window is to be dropped from here on.
  virtual void drop_incoming() = 0;
  // Says goodbye if it can; ended() follows when nothing of it touches memory any more.
  virtual void stop(error_code why) = 0;
  virtual void abort(error_code why) = 0;  // the same, without a word
  // What passes memory to the peer; null where none can be passed.
  virtual byte_stream* memory_carrier() { return nullptr; }
  // Called when it has ended: what the peer may still access is to be held until the peer is gone; and what a device of its may,
  // until its process is.
  virtual void hold_until_gone(std::shared_ptr<void>, bool /*by_device*/) {}
  // The device has made one of the `copying`: the connection says that nothing touches the peer's memory any more when
  // none is left.
  virtual void copied(const std::shared_ptr<link_session>&) { --copying; }

  // The peer's put that comes in now.
  struct incoming {
    std::vector<buffer> target;
    std::unique_ptr<window_use> use;
    error_code refused;
    buffer staged;       // where it is read to, when the target is a device's
    bool waits = false;  // for that
  } in;
  struct put : put_place {
    error_code refused;
  };
  std::vector<put_place> announced;  // the next put brings their bytes
  std::vector<put> puts;             // whose bytes come in now
  std::uint32_t copying = 0;         // copies of the device into or out of the peer's memory
  std::uint32_t landing = 0;         // frames that the device still copies to their place, or whose bytes are carried
  std::optional<error_code> over;    // ended, but for those
  std::uint32_t serving = 0;         // requests of the peer whose answers are not written yet
  time_point heard{};                // anything
  time_point heard_answer{};         // to a request of ours
  std::uint32_t number = 0;          // of the connections of its link
};

class link_session : public std::enable_shared_from_this<link_session> {
 public:
  link_session(std::shared_ptr<window_registry> windows, link_options options, const link_hello& theirs,
               std::string address);

  const prepared_executor& executor() const noexcept { return windows_->executor; }
  const link_peer& peer() const noexcept { return peer_; }
  error_code error() const noexcept { return error_; }

  // Lane 0 first. False when the link is down already, or has had this one.
  bool add(std::shared_ptr<link_lane_base> lane, std::uint32_t number);
  std::uint64_t chunk() const noexcept { return chunk_; }
  std::size_t lanes() const noexcept { return lanes_up_; }
  std::uint32_t next_number() const noexcept { return static_cast<std::uint32_t>(lanes_.size()); }
  // What is in memory that it takes is carried by it, once meet() has completed. Before the first lane runs.
  void carry_by(std::unique_ptr<link_carrier> carrier) { carrier_ = std::move(carrier); }
  awaitable<error_code> meet();
  // Runs while the link is up, and is cancelled with it.
  void attend(awaitable<void> task);
  // When another connection than the first has ended, one a turn. False: cancelled.
  awaitable<bool> lane_lost() { co_return (co_await lost_.async_receive(as_result)).has_value(); }
  void ended(link_lane_base& lane, error_code why);
  void fail(error_code why);
  void abort(error_code why);

  // A verified header whose payload waits for its place. An error ends the lane.
  error_code place(link_lane_base& lane, link_parser& parser);
  // For a lane that waits with what comes in: a chunk of pinned memory.
  staging_pool& staging() noexcept { return windows_->reach->in(); }
  // A whole frame.
  error_code arrived(link_lane_base& lane, link_parser& parser);
  // So many answers of it were written.
  void answered(link_lane_base& lane, std::uint32_t n) noexcept;
  // Of a lane that has something to write, in each turn of the loop until it is written.
  void next_turn() noexcept { copied_ = 0; }
  // Whether the peer owes an answer that doesn't depend on its application.
  bool awaits_answer(const link_lane_base& lane) const noexcept;

  awaitable<error_code> put(window_ref to, std::uint64_t offset, std::vector<buffer> pieces, event begin,
                            completion_level level);
  awaitable<error_code> get(window_ref from, std::uint64_t offset, std::vector<buffer> pieces, event begin);
  // One piece, and nothing to wait for but the answer: link_at_once.cpp.
  bool puts_at_once(const window_ref& to, const buffer& chunk) { return at_once(asked::put, to, chunk); }
  bool gets_at_once(const window_ref& from, const buffer& chunk) { return at_once(asked::get, from, chunk); }
  void begin_put(const window_ref& to, std::uint64_t offset, buffer chunk, transfer_operation& op) noexcept {
    begin(asked::put, to, offset, std::move(chunk), op);
  }
  void begin_get(const window_ref& from, std::uint64_t offset, buffer chunk, transfer_operation& op) noexcept {
    begin(asked::get, from, offset, std::move(chunk), op);
  }
  awaitable<error_code> commit(window_ref to);
  awaitable<error_code> send(link_message message);
  awaitable<result<link_message>> receive();

  template <class Token>
  auto async_closed(Token&& token) {
    return initiate<void(error_code)>(std::forward<Token>(token), executor(), [this](beginning<void(error_code)>& b) {
      if (down()) return b.complete({});
      closed_.push_back(b.wait());
    });
  }

 private:
  enum class asked : std::uint8_t { nothing, put, get, landing, commit, message, fence, open, recall, copying };
  struct pending {  // a request of ours
    asked what = asked::nothing;
    std::uint32_t serial = 0;
    link_lane_base* lane = nullptr;  // null: it broke, and is being fenced
    std::uint32_t number = 0;        // of that lane; of a fence, of the one it is about
    std::shared_ptr<link_job> job;
    operation_list<transfer_operation> waiter;  // in place of a job
    std::vector<buffer> into;                   // of a get
    std::uint64_t offset = 0, length = 0;
    window_key window;                    // of a get in place, an open and a recall
    std::shared_ptr<link_job> asked_for;  // of an open
    bool in_place = false, carried = false;
    bool copied = false;  // by the device, before it was asked for
    permit credit;
  };

  // One put or get of a caller, and how far it is.
  struct transfer {
    asked what;
    window_ref window;
    window_key key;
    std::uint64_t offset = 0;
    std::vector<buffer> pieces;
    std::uint64_t bytes = 0, chunk = 0;
    bool carried = false;  // beside the connection
    bool staged = false;   // the host can't reach it
    bool direct = false;   // a device can copy it to where the peer's has its memory
    std::shared_ptr<link_job> job;
    std::shared_ptr<link_job> leaving;  // of a put that completes when its memory may be reused: until then
    std::vector<std::uint64_t> requests;
    std::uint64_t at = 0;         // of the bytes: the next one's
    piece_cursor source{pieces};  // the same, of a put that the host reads; nothing once the pieces are given away

    bool all_asked() const noexcept { return at == bytes && !requests.empty(); }
  };

  bool down() const noexcept { return error_ && lanes_up_ == 0; }
  pending* find(std::uint64_t request, const link_lane_base& lane);
  void make_room(std::uint32_t number);
  std::uint64_t request_of(std::uint32_t slot) const { return std::uint64_t{pending_[slot].serial} << 32 | slot; }
  std::uint32_t take_place();  // of pending_, as new but for its serial
  std::uint64_t open(pending request);
  void close(std::uint64_t request, error_code ec);
  void close_all(std::uint32_t lane, error_code ec);
  void end_with(error_code why, bool silent);
  void settle();
  link_lane_base* least_busy() const;
  link_lane_base* first() const noexcept { return lanes_.empty() ? nullptr : lanes_.front().get(); }

  // link_move.cpp. What takes a credit has left it where it was when it fails.
  awaitable<error_code> move(asked what, window_ref window, std::uint64_t offset, std::vector<buffer> pieces,
                             event begin, completion_level level);
  outgoing_frame ask_next(transfer& t, link_lane_base& lane, std::uint64_t n, bool in_place, permit& credit);
  error_code send_part(transfer& t, std::vector<buffer> part, std::uint64_t n, bool in_place, permit& credit);
  awaitable<error_code> finished(std::shared_ptr<link_job> job, std::vector<std::uint64_t> requests,
                                 std::shared_ptr<link_job> leaving);
  void trail(const window_ref& window, const std::shared_ptr<link_job>& job);
  awaitable<error_code> trailed(const window_ref& window);
  void withdraw(const std::vector<std::uint64_t>& requests);
  static window_key key_for(asked what, const window_ref& window) {
    return {window.id, window.generation, what == asked::put ? window_access::put : window_access::get};
  }
  bool at_once(asked what, const window_ref& window, const buffer& chunk);
  void begin(asked what, const window_ref& window, std::uint64_t offset, buffer chunk, transfer_operation& op) noexcept;
  void cancel(transfer_operation& op, asio::cancellation_type_t type);

  // Memory of a device: link_staged.cpp.
  awaitable<result<buffer>> fetch(device_reach& through, std::vector<buffer> pieces, std::uint64_t bytes);
  void receive_into(link_lane_base& lane, link_parser& parser, const std::vector<buffer>& pieces);
  void land(device_reach& through, link_lane_base& lane, const buffer& from, const std::vector<buffer>& to,
            std::function<void(error_code)> done);
  void landed(link_lane_base& lane);
  static awaitable<void> send_fetched(std::shared_ptr<link_session> self, std::shared_ptr<link_lane_base> lane,
                                      link_header asked_for, bool carried);

  // Beside the connection: link_carried.cpp.
  static awaitable<void> take_carried(std::shared_ptr<link_session> self);
  void took_carried(link_lane_base& lane, const link_header& header, const buffer& piece, error_code ec);
  void carry(std::shared_ptr<link_lane_base> lane, outgoing_frame frame, buffer piece, std::shared_ptr<link_job> job,
             std::shared_ptr<void> until_gone = {});
  void carrying_failed(error_code ec);
  error_code announced(link_lane_base& lane, const link_header& header);

  // In place: link_in_place.cpp.
  bool may_borrow(const window_ref& window, bool staged) const;
  bool asked_for(const window_key& key, bool device_alone);
  awaitable<error_code> borrow(window_key key, bool device_alone);
  borrowed_windows::window* borrowed(const window_key& key, std::uint64_t offset, std::uint64_t bytes);
  void recall(link_lane_base& lane, const window_key& key);
  error_code serve_open(link_lane_base& lane, const link_header& header);
  error_code take_grant(link_lane_base& lane, link_parser& parser);
  error_code serve_recall(link_lane_base& lane, const link_header& header);
  error_code serve_put_in_place(link_lane_base& lane, const link_parser& parser);
  error_code serve_get_in_place(link_lane_base& lane, const link_header& header);
  error_code take_data_in_place(const pending& p, const link_parser& parser);
  static outgoing_frame copied_in_place(const link_header& header, const borrowed_windows::window& place,
                                        piece_cursor& from);
  error_code put_in_place(transfer& t, const borrowed_windows::window& place, permit& credit);
  // By a device: link_by_device.cpp.
  device_reach* direct_reach() const;
  error_code copy_by_device(transfer& t, const borrowed_windows::window& place, permit& credit);
  void tell_when_copied(link_lane_base& lane, outgoing_frame frame, const event& copied,
                        std::shared_ptr<void> until_copied);
  // What is copied in one go.
  static constexpr std::uint64_t most_in_place = std::uint64_t{1} << 20;

  error_code take_places(link_lane_base& lane, link_parser& parser);
  error_code take_dones(link_lane_base& lane, link_parser& parser);
  error_code place_put(link_lane_base& lane, link_parser& parser);
  error_code place_data(link_lane_base& lane, link_parser& parser);
  error_code serve_put(link_lane_base& lane, link_parser& parser);
  void answer_puts(link_lane_base& lane, const std::vector<link_lane_base::put>& puts, error_code ec);
  error_code serve_commit(link_lane_base& lane, const link_header& header);
  error_code serve_get(link_lane_base& lane, const link_header& header);
  error_code take_data(link_lane_base& lane, link_parser& parser);
  error_code take_done(link_lane_base& lane, const link_header& header);
  error_code take_message(link_lane_base& lane, link_parser& parser);
  void answer(link_lane_base& lane, std::uint64_t request, error_code ec);
  void fence(std::uint32_t number);
  error_code serve_fence(link_lane_base& lane, const link_header& header);

  std::shared_ptr<window_registry> windows_;
  link_options options_;
  link_peer peer_;
  std::uint64_t chunk_;                                 // what the peer takes and we send, the smaller
  std::vector<std::shared_ptr<link_lane_base>> lanes_;  // by number
  std::vector<bool> had_;                               // so many of them, ended or not
  std::map<std::uint32_t, std::uint64_t> fences_;       // of the peer: answered when the lane has ended
  std::size_t lanes_up_ = 0;
  error_code error_;
  std::vector<pending> pending_;
  std::vector<std::uint32_t> free_;
  std::uint32_t serial_ = 0;
  std::uint32_t serving_ = 0;  // of all lanes
  std::uint64_t copied_ = 0;   // at once, in this turn
  semaphore credits_;
  semaphore message_credits_;
  struct received {
    link_message bytes;
    std::uint64_t request = 0;
  };
  channel<received> inbox_;
  lent_windows lent_;
  borrowed_windows borrowed_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::shared_ptr<link_job>> trails_;  // by window, and generation
  std::unique_ptr<link_carrier> carrier_;                                                // or null
  link_job met_{executor()};         // by the carrier, or the link is down
  std::deque<link_header> carried_;  // said to come, and not received yet
  operation_list<operation<void(error_code)>> announced_;
  operation_list<operation<void(error_code)>> closed_;
  channel<std::uint32_t> lost_;  // those that were not replaced yet
  background tasks_;
};

}  // namespace cokv::detail

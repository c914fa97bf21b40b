// One connection of a link: reads frames right into their memory, writes what is queued in as few system calls as it
// takes, and watches that the peer is still there. It only carries; what frames mean is link_session's.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cokv/runtime/net.hpp"
#include "link/link_session.hpp"

namespace cokv::detail {

class link_lane final : public link_lane_base, public std::enable_shared_from_this<link_lane> {
 public:
  link_lane(byte_stream stream, const link_options& options);

  // Before run(): one frame each way. What they cost is bounded by the caller's deadline.
  awaitable<error_code> greet(link_hello mine);
  awaitable<result<link_hello>> greeting();
  // A last frame instead of a greeting.
  awaitable<void> refuse(error_code why);

  void run(std::shared_ptr<link_session> session);

  void send(outgoing_frame frame) override;
  void send(const link_header& header, buffer payload) override;
  void answer(std::uint64_t request, std::uint32_t code) override;
  bool withdraw(link_type type, std::uint64_t request) override { return queue_.withdraw(type, request); }
  std::uint64_t queued() const override { return queue_.bytes(); }
  bool up() const override { return !stopped_; }
  void drop_incoming() override;
  void stop(error_code why) override;
  void abort(error_code why) override { break_off(why); }
  byte_stream* memory_carrier() override { return stream_.carries_descriptors() ? &stream_ : nullptr; }
  void hold_until_gone(std::shared_ptr<void> what, bool by_device) override;
  void copied(const std::shared_ptr<link_session>& session) override;

  std::string address() const { return stream_.peer(); }
  void close() { stream_.close(); }

 private:
  awaitable<void> read(std::shared_ptr<link_session> session);
  awaitable<void> write(std::shared_ptr<link_session> session);
  awaitable<void> watch(std::shared_ptr<link_session> session);
  awaitable<void> drain();
  awaitable<error_code> flush();
  awaitable<error_code> read_some();
  error_code parse(link_session& session);
  error_code step(link_session& session);
  void finished(const std::shared_ptr<link_session>& session);
  void settle(const std::shared_ptr<link_session>& session);
  void break_off(error_code why);

  byte_stream stream_;
  const std::optional<int> peer_process_;
  duration silence_;
  std::uint64_t most_at_once_;
  link_parser parser_;
  std::vector<std::byte> inbox_;
  std::span<const std::byte> unread_;  // of inbox_
  std::vector<asio::mutable_buffer> into_;
  asio::cancellation_signal stop_reading_, stop_writing_, stop_watching_;
  bool reading_ = false;
  bool drop_ = false;
  bool holding_ = false;
  bool peer_gone_ = false;  // it has closed its side: nothing of it touches memory any more

  send_queue queue_;
  prepared_executor executor_;
  operation_list<operation<void(error_code)>> writer_;  // it waits for work
  bool writing_ = false;                                // a write is under way
  bool said_all_ = false;                               // our side ends when no device copies for it any more
  bool leaving_ = false;                                // the connection ends when the queue is empty
  time_point wrote_{};
  bool pinged_ = false;
  bool running_ = false;
  int tasks_ = 0;
  bool stopped_ = false;
  error_code why_;
};

}  // namespace cokv::detail

// One stream of bytes over an endpoint, as numbered messages each way. Large buffers are offered to the peer, which
// fetches them straight from where they lie to where its reader wants them; small ones are packed together and sent at
// once, as many as the peer has room for. What the reader's list has no room for is kept until it asks again.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "link/message_cut.hpp"
#include "link/ucx/ucx_port.hpp"

namespace cokv::detail {

using ucx_transfer = operation<void(error_code, std::size_t)>;

class ucx_channel : public std::enable_shared_from_this<ucx_channel> {
 public:
  ucx_channel(ucx_port& port, std::string peer) : port_(port), peer_(std::move(peer)) {}

  const std::string& peer() const noexcept { return peer_; }
  bool open() const noexcept { return open_; }
  bool sending() const noexcept { return sending_ > 0; }
  const prepared_executor& executor() const noexcept { return port_.executor(); }

  void begin(ucp_ep_h ep);
  void await_greeting(operation<void(error_code)>& op);

  void read(const byte_stream::mutable_buffers& into, ucx_transfer& op);
  void write(const byte_stream::const_buffers& from, ucx_transfer& op);
  void say_end();
  // What owns the bytes of the next write.
  void keep(std::shared_ptr<void> memory) { kept_ = std::move(memory); }
  void close();
  void fail(error_code why);

  // How UCX hands us a message's `data`: bytes that are gone after the call, or ours until they are released, or an
  // offer to be received or released.
  enum class coming : std::uint8_t { for_now, to_keep, offered };
  // True: it is kept.
  bool arrived(const ucx_head& head, void* data, std::size_t bytes, coming how);

 private:
  struct message {
    ucx_head::what kind = ucx_head::what::bytes;
    std::size_t size = 0;
    void* offer = nullptr;            // none: the bytes are
    const std::byte* data = nullptr;  // here,
    std::size_t at = 0;               // taken so far,
    void* held = nullptr;             // in UCX's memory,
    std::vector<std::byte> bytes;     // or in ours
    bool fetched = false;             // the rest of an offer: not sent ahead
  };

  static constexpr std::size_t least_offered = std::size_t{64} << 10;

  void pump();
  void end_read(error_code ec);
  void keep_rest(message& m);
  void let_go();
  void take_packed(message& m);
  void fetch(void* offer, std::size_t size);
  void fetched(error_code ec, std::vector<std::byte> rest);
  void taken(std::size_t bytes);
  void end_if_over();
  void begin_write();
  void send_packed(std::vector<std::byte> bytes);
  void send_direct(std::span<const asio::const_buffer> pieces, std::size_t bytes, const std::shared_ptr<void>& owner);
  void sent(std::size_t bytes, error_code ec);
  void finish_write();
  bool may_begin() const noexcept;
  bool receiving() const noexcept { return fetching_ > 0; }

  ucx_port& port_;
  const std::string peer_;
  ucp_ep_h ep_ = nullptr;  // none: hung up
  bool open_ = true, greeted_ = false, heard_end_ = false, said_end_ = false;
  error_code failed_;
  operation_list<operation<void(error_code)>> caller_;
  asio::cancellation_signal lingering_;

  operation_list<ucx_transfer> reader_;
  byte_stream::mutable_buffers into_;
  std::map<std::uint32_t, message> came_;
  std::uint32_t next_in_ = 0, next_out_ = 0;
  std::size_t waiting_ = 0;   // bytes in came_
  std::size_t untold_ = 0;    // taken, and the peer has not been told
  std::size_t placed_ = 0;    // of into_: what has come there, or is fetched to there
  std::size_t fetching_ = 0;  // messages
  error_code fetch_failed_;   // of this read

  operation_list<ucx_transfer> writer_;
  byte_stream::const_buffers from_;
  bool writing_ = false;                       // UCX reads the writer's memory
  std::size_t lent_ = 0;                       // sends of it under way
  std::size_t sending_ = 0;                    // all sends under way,
  std::size_t under_way_ = 0;                  // and their bytes
  std::size_t ahead_ = 0;                      // packed bytes that the peer has not taken
  message_packing packing_{least_offered, 1};  // an offer of several pieces costs UCX more than a copy
  std::shared_ptr<void> kept_;
};

}  // namespace cokv::detail

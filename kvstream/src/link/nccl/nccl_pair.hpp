// Device memory to the device of one other process and back: a pair of ranks of NCCL, one communicator for each
// direction. The n-th send here meets the n-th receive there, in pieces of the same sizes.
//
//     auto id = co_await make_nccl_id(api, device);                    // on one side; the other gets it over any channel
//     auto pair = co_await nccl_pair::connect(api, device, *id, 0, {});  // there with rank 1
//     co_await pair->async_send(pieces, after(computed), announce, token);
//     co_await pair->async_receive(pieces, token);                     // when the other side said that it has begun
//
// |              | async_send, async_receive                                                                       |
// |--------------|-------------------------------------------------------------------------------------------------|
// | cancellation | before it has begun (the event, waiting for room): every kind, nothing happened. Begun: total    |
// |              | and partial let it drain and give its own result; terminal alone completes at once as           |
// |              | operation_aborted while it runs on. What has begun ends with its peer's part or by abort()       |
// | the pieces   | device memory of the pair's device, referenced until nothing uses it, also after terminal        |
// | completes    | when the device is done with it and NCCL reports no error: a send's memory may be reused, a      |
// |              | receive's bytes are there (NCCL carries no digest)                                               |
// | errors       | the event's own (nothing happened); wrong_device; and what ended the pair: NCCL's (category     |
// |              | "nccl"), the stream's, deadline, what abort() was given, closed                                  |
//
// A receive whose send hasn't begun holds a part of the GPU while it waits, so it is to be posted when the sender says
// that it has (`begun`). A failure ends the pair: both communicators are aborted, once, and what had begun fails when
// nothing of it writes memory any more. NCCL does not tell when a peer on the same machine is gone: who knows (by the
// channel that the id came over) calls abort(); else `stall` does. The streams are the pair's own, and go with it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cokv/kvstream/transfer.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/device.hpp"
#include "link/nccl/nccl_api.hpp"

namespace cokv::detail {

class nccl_session;

// Two of NCCL's: of the direction from rank 0, and to it. For two sides that trust each other, as NCCL does.
using nccl_id = std::array<ncclUniqueId, 2>;

// void(error_code, nccl_id). NCCL listens for the ranks in this process from then on.
awaitable<result<nccl_id>> make_nccl_id(nccl_api api, device on);

struct nccl_pair_options {
  duration set_up = std::chrono::seconds(30);  // until both sides have exchanged a byte each way
  duration stall = std::chrono::seconds(30);   // without anything ending that has begun; max() for ever
};

class nccl_pair {
 public:
  // Ends at once when it is cancelled; what was made is then aborted in the background. errc::wrong_device for a device
  // that is not CUDA's, errc::invalid_argument for a rank that is neither 0 nor 1, errc::deadline, NCCL's own.
  static awaitable<result<nccl_pair>> connect(nccl_api api, device on, nccl_id id, int rank,
                                              nccl_pair_options options);

  nccl_pair() = default;
  nccl_pair(nccl_pair&&) noexcept = default;
  nccl_pair& operator=(nccl_pair&& other) noexcept;
  ~nccl_pair();  // as abort(errc::closed)

  // Called in the context when a send takes its place (its number, from 1): the peer's receives are to be posted in
  // that order. Sends take their places as their events become ready; one that is not ready holds up no other.
  using announce = std::function<void(std::uint64_t number)>;

  // void(error_code). What has no bytes takes no place.
  template <class Token>
  auto async_send(std::vector<buffer> pieces, event begin, announce begun, Token&& token) {
    auto start = [s = session_, p = std::move(pieces), begin, b = std::move(begun)](handler h) mutable {
      send(std::move(s), std::move(p), std::move(begin), std::move(b), std::move(h));
    };
    return initiate_erased<void(error_code)>(std::forward<Token>(token), get_executor(), std::move(start));
  }
  template <class Token>
  auto async_receive(std::vector<buffer> pieces, Token&& token) {
    auto start = [s = session_, p = std::move(pieces)](handler h) mutable {
      receive(std::move(s), std::move(p), std::move(h));
    };
    return initiate_erased<void(error_code)>(std::forward<Token>(token), get_executor(), std::move(start));
  }

  // void(error_code): when all that has begun is done, and the peer closes too. Nothing new is taken from here on.
  // Cancellation: the wait ends, the closing goes on. Errors: what ended the pair meanwhile.
  template <class Token>
  auto async_close(Token&& token) {
    auto start = [s = session_](handler h) mutable { close(std::move(s), std::move(h)); };
    return initiate_erased<void(error_code)>(std::forward<Token>(token), get_executor(), std::move(start));
  }

  // Everything fails with `why`; without waiting.
  void abort(error_code why);
  error_code status() const;
  const asio::any_io_executor& get_executor() const;

 private:
  using handler = asio::any_completion_handler<void(error_code)>;
  explicit nccl_pair(std::shared_ptr<nccl_session> s) : session_(std::move(s)) {}
  static void send(std::shared_ptr<nccl_session> s, std::vector<buffer> pieces, event begin, announce begun, handler h);
  static void receive(std::shared_ptr<nccl_session> s, std::vector<buffer> pieces, handler h);
  static void close(std::shared_ptr<nccl_session> s, handler h);

  std::shared_ptr<nccl_session> session_;
};

}  // namespace cokv::detail

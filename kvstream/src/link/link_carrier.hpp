// What moves the bytes of puts and gets beside a link's connection, which says what each of them is: over NCCL from one
// device to the other. The n-th transfer that begins here is the n-th that is received there, as one piece.
#pragma once

#include <functional>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "link/device_reach.hpp"

namespace cokv::detail {

class link_carrier {
 public:
  using done = std::function<void(error_code)>;
  virtual ~link_carrier() = default;

  // Until both sides are there, once. Ends at once when it is cancelled.
  virtual awaitable<error_code> meet() = 0;
  // Some bytes, in memory that is carried right from where it lies.
  virtual bool takes(const std::vector<buffer>& pieces) const = 0;
  // Chunks of such memory: what is carried is one piece, and comes into one.
  virtual device_reach& reach() noexcept = 0;

  // After meet(). `begun` is called when the transfer takes its place; `done` once, when nothing of it touches memory any
  // more. One that fails ends all, and those that come after.
  virtual void send(buffer piece, std::function<void()> begun, done over) = 0;
  virtual void receive(buffer piece, done over) = 0;
  virtual void abort(error_code why) = 0;
};

}  // namespace cokv::detail

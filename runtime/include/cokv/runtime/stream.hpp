// An in-order queue of a device: copies, kernels, and edges to other streams, enqueued without waiting and done one
// after the other. Events say how far it is; its error, once there is one, sticks and arrives at the next await.
//
//     cokv::stream copies = device.make_stream({.name = "copies"}).value();
//     copies.wait(computed);                                // the other stream's event: no host involved
//     copies.copy(host_block, device_block);
//     co_await copies.record().async_wait();
//
// Enqueuing returns at once (on a CPU a copy of at most 32 KiB may be made by the caller, which is sooner done). Buffers
// stay referenced until their operation is done, also when every handle to the stream is gone (what was enqueued still
// runs) and when the context is destroyed (what runs is waited for, what had not begun is dropped). A kernel that
// captures raw pointers answers for them itself: capture buffers.
//
// | enqueue | returns |
// |---|---|
// | success | accepted; its own failure sticks to the stream |
// | errc::queue_full | max_in_flight operations are not done: async_room |
// | errc::invalid_argument | source and destination differ in size, or overlap |
// | errc::wrong_device | a buffer or event that this device can't reach |
// | errc::unsupported | a launch on a device that has no host kernels |
// | the stream's error | it failed before, or the device refused this: nothing of it runs |
// | errc::closed | its context is gone |
//
// What has begun and then fails was accepted: its event says so when nothing touches the buffers any more.
//
// A CUDA device copies from and to device memory and host memory that CUDA knows. Any other, whatever its kind says, is
// errc::wrong_device there: CUDA would hold the loop up until everything enqueued before it is done. Copies between
// host memory are made by a host function on CUDA's thread, in the stream's order, since CUDA's own call would hold the
// caller up in the same way; while one runs, no other host function of the device does.
//
// Cheap to copy; used from the context's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/detail/require.hpp"
#include "cokv/runtime/detail/unique_function.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/event.hpp"

namespace cokv {

// What a kernel costs, for devices that price it: floating-point operations, and bytes of device memory it touches.
struct cost {
  double flops = 0;
  double bytes = 0;
};

struct stream_options {
  std::string name;  // its track in a trace
  // Lower is more urgent, where the device knows it; interrupts nothing. On a CPU whatever is below 0 does not wait for
  // threads that compute.
  int priority = 0;
  std::size_t max_in_flight = 1024;  // operations enqueued and not done
};

namespace detail {

using kernel = unique_function<error_code()>;

// A device's side of a stream.
class stream_backend {
 public:
  // What enqueues on the native stream: called during the call it is given to, and not kept.
  struct native_call {
    void* function;
    error_code (*call)(void* function, void* native_stream);
  };

  virtual ~stream_backend() = default;
  virtual error_code copy(std::span<const copy_op> batch, std::string_view name) = 0;
  virtual error_code launch(std::string_view name, kernel fn, cost price) = 0;
  virtual error_code launch_native(std::string_view, std::span<const buffer>, native_call) { return errc::unsupported; }
  virtual error_code wait(const event& e) = 0;
  virtual result<buffer> allocate(std::size_t bytes) = 0;
  virtual void* native_handle() { return nullptr; }
  virtual event record() { return {line(), enqueued()}; }
  virtual std::uint64_t enqueued() const noexcept = 0;
  virtual std::size_t max_in_flight() const noexcept = 0;
  virtual const std::shared_ptr<timeline_core>& line() const noexcept = 0;
};

}  // namespace detail

class stream {
 public:
  stream() = default;
  explicit stream(std::shared_ptr<detail::stream_backend> backend) noexcept : backend_(std::move(backend)) {}
  explicit operator bool() const noexcept { return backend_ != nullptr; }
  const asio::any_io_executor& get_executor() const noexcept { return backend().line()->get_executor(); }

  // dst and src are of equal size and don't overlap. `name` is the span's in a trace.
  error_code copy(buffer dst, buffer src, std::string_view name = "copy") {
    const copy_op one{std::move(dst), std::move(src)};
    return one.overlaps() ? errc::invalid_argument : backend().copy({&one, 1}, name);
  }
  // One operation for the bound and for events; nothing is enqueued if one of the batch is refused. Its copies may run
  // in any order, or at once.
  error_code copy_batch(std::span<const copy_op> batch, std::string_view name = "copy") {
    for (auto& c : batch)
      if (c.overlaps()) return errc::invalid_argument;
    return backend().copy(batch, name);
  }

  // What is enqueued from here on waits for the event; its error becomes this stream's.
  error_code wait(const event& e) { return backend().wait(e); }

  // The point behind everything enqueued so far.
  event record() const { return backend().record(); }

  // Runs fn, `void()` or `error_code()`, move-only or not, on the device's threads, with all of them for parallel
  // algorithms of oneTBB inside it. What it returns or throws as an error sticks to the stream.
  template <class F>
  error_code launch(std::string_view name, F&& fn, cost price = {}) {
    if constexpr (std::is_convertible_v<std::invoke_result_t<std::decay_t<F>&>, error_code>)
      return backend().launch(name, std::forward<F>(fn), price);
    else
      return backend().launch(
          name, [fn = std::decay_t<F>(std::forward<F>(fn))]() mutable -> error_code { return fn(), error_code(); },
          price);
  }

  // Work that a library or a kernel launch puts on the native stream: fn(native_handle()) is called here and now, and
  // all it enqueued is one operation, which keeps `uses` until it is done. fn returns nothing or an error_code, which
  // sticks. errc::unsupported where there is no native stream: launch() is for those devices.
  template <class F>
  error_code launch_native(std::string_view name, std::span<const buffer> uses, F&& fn) {
    auto call = [](void* function, void* native) -> error_code {
      auto& f = *static_cast<std::remove_reference_t<F>*>(function);
      if constexpr (std::is_convertible_v<std::invoke_result_t<F&, void*>, error_code>)
        return f(native);
      else
        return f(native), error_code();
    };
    return backend().launch_native(name, uses, {const_cast<void*>(static_cast<const void*>(std::addressof(fn))), call});
  }

  // Device memory from here on in this stream's order: what is enqueued next may use it, other streams behind an event
  // of this one. It goes back when its last handle does, without waiting where the device can. errc::out_of_memory.
  result<buffer> allocate(std::size_t bytes) { return backend().allocate(bytes); }

  // A cudaStream_t, null where there is none. Whatever is enqueued on it by others is covered by the next record().
  void* native_handle() { return backend().native_handle(); }

  // The error that stuck, if one did.
  error_code status() const noexcept { return backend().line()->status(backend().enqueued()); }
  std::size_t in_flight() const noexcept {
    const auto done = backend().line()->value(), enqueued = backend().enqueued();
    return done < enqueued && !status() ? enqueued - done : 0;
  }

  // void(error_code): when an operation would be accepted (somebody else may take the room first), or the stream's
  // error. Cancellation: terminal, partial, total.
  template <class Token = asio::deferred_t>
  auto async_room(Token&& token = Token()) const {
    const auto next = backend().enqueued() + 1, bound = std::uint64_t{backend().max_in_flight()};
    return detail::timeline_core::async_wait(backend().line(), next > bound ? next - bound : 0,
                                             std::forward<Token>(token));
  }

  // void(error_code): when everything enqueued so far is done, with the stream's error. Cancellation: as async_room.
  template <class Token = asio::deferred_t>
  auto async_drain(Token&& token = Token()) const {
    return detail::timeline_core::async_wait(backend().line(), backend().enqueued(), std::forward<Token>(token));
  }

 private:
  detail::stream_backend& backend() const {
    COKV_REQUIRE(backend_, "a stream is made by device::make_stream before it is used");
    return *backend_;
  }

  std::shared_ptr<detail::stream_backend> backend_;
};

}  // namespace cokv

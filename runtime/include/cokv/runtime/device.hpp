// What computes and copies: a CPU, a CUDA device, or a simulated one, opened by name. Streams and memory come from it;
// the code that uses them is the same on all three.
//
//     auto device = cokv::open_device(ex, "cpu").value();
//     auto stream = device.make_stream({.name = "compute"}).value();
//     auto block = device.allocate(1 << 20).value();
//     stream.launch("fill", [block] { std::ranges::fill(block.bytes(), std::byte{1}); });
//     co_await stream.record().async_wait();
//
// Names: "cpu"; "cuda:N" (errc::no_device without a driver or without device N, errc::unsupported when built without
// CUDA); "sim:SPEC" and "sim:SPEC:N" on a sim_context, with a published spec or a file of one's own
// (sim_device_spec.hpp; errc::invalid_argument for a file with a mistake). explain_device() has the line for a person.
// Cheap to copy; used from the context's thread.
//
// Another engine's streams, events and memory become cokv's by adopt_stream, adopt_event and adopt_memory, so that its
// KV can be moved without a copy and its kernels waited for; its memory is mapped into other processes by
// export_memory and import_memory.
//
//     auto compute = device.adopt_stream(at::cuda::getCurrentCUDAStream().stream()).value();
//     copies.wait(compute.record());                        // behind the kernels that are on it by now
//
// | memory_kind | cpu | cuda | exported as |
// |---|---|---|---|
// | host | pageable memory | pageable memory, which its streams refuse | |
// | pinned | made resident | pages of our own, registered with CUDA | |
// | device | made resident | cudaMalloc | |
// | shared | a sealed memfd | a sealed memfd, registered with CUDA | its descriptor |
// | exportable | errc::unsupported | cudaMalloc, whole 2 MiB pages | a CUDA IPC handle |
//
// A lost device: an error of CUDA that sticks (an illegal address, an ECC error) ends everything on the device in this
// process. Its waiters complete with CUDA's error, once; its streams keep it; the device's own calls say
// errc::device_lost. Open it again: that resets the device, for everybody in the process, and is errc::device_lost
// still while another context has it open. Host memory that was being written is kept until then. A driver may give the
// process no device behind that (an H200's says cudaErrorDevicesUnavailable): then it is a process that begins anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"
#include "cokv/runtime/detail/require.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/stream.hpp"

namespace cokv {

// How a CUDA stream says how far it is.
enum class completion_signal : std::uint8_t {
  automatic,  // a word where the device can write one, else events
  word,       // a word in pinned memory that the stream writes: looking at it is one load. errc::unsupported without
  event,      // an event behind every operation, of which the oldest is asked for
};

struct device_options {
  int threads = 0;  // of the CPU's compute arena; 0: one a hardware thread
  completion_signal signal = completion_signal::automatic;
};

namespace detail {

// Threads that functions can be put on.
class submit_target {
 public:
  virtual ~submit_target() = default;
  virtual bool submit(unique_function<void()> f) = 0;  // false: the context is gone, f was not taken
  virtual int concurrency() const noexcept = 0;
};

class device_backend : public submit_target {
 public:
  virtual std::string_view name() const noexcept = 0;
  virtual result<std::shared_ptr<stream_backend>> make_stream(stream_options options) = 0;
  virtual result<buffer> allocate(std::size_t bytes, memory_kind kind) = 0;
  virtual const asio::any_io_executor& get_executor() const noexcept = 0;
  virtual result<std::shared_ptr<stream_backend>> adopt_stream(void*, stream_options) { return errc::unsupported; }
  virtual result<event> adopt_event(void*) { return errc::unsupported; }
  virtual result<buffer> adopt_memory(void*, std::size_t, std::shared_ptr<void>) { return errc::unsupported; }
  virtual result<memory_handle> export_memory(const buffer&) { return errc::unsupported; }
  virtual result<buffer> import_memory(const memory_handle&) { return errc::unsupported; }
};

using allocate_handler = asio::any_completion_handler<void(error_code, buffer)>;
void allocate_on(std::shared_ptr<device_backend> backend, std::size_t bytes, memory_kind kind, allocate_handler h);

}  // namespace detail

class device {
 public:
  device() = default;
  explicit device(std::shared_ptr<detail::device_backend> backend) noexcept : backend_(std::move(backend)) {}
  explicit operator bool() const noexcept { return backend_ != nullptr; }

  std::string_view name() const noexcept { return used().name(); }
  const asio::any_io_executor& get_executor() const noexcept { return used().get_executor(); }

  result<stream> make_stream(stream_options options = {}) {
    auto made = used().make_stream(std::move(options));
    if (!made) return made.error();
    return stream(std::move(*made));
  }

  // Uninitialised (on a simulated device: poisoned). errc::out_of_memory, errc::unsupported for a kind it hasn't.
  result<buffer> allocate(std::size_t bytes, memory_kind kind = memory_kind::device) {
    return used().allocate(bytes, kind);
  }

  // The same on the device's own threads: pinning and registering gigabytes takes long, and the loop goes on meanwhile.
  //
  // | async_allocate | void(error_code, buffer) |
  // |---|---|
  // | cancellation | not begun: operation_aborted at once; begun: completes with what came of it |
  // | errors | as allocate; errc::closed |
  template <class Token = asio::deferred_t>
  auto async_allocate(std::size_t bytes, memory_kind kind = memory_kind::device, Token&& token = Token()) const {
    return detail::initiate_erased<void(error_code, buffer)>(
        std::forward<Token>(token), get_executor(), [backend = backend_, bytes, kind](detail::allocate_handler h) {
          detail::allocate_on(std::move(backend), bytes, kind, std::move(h));
        });
  }

  // A cudaStream_t of this device that somebody else made and keeps until every handle is gone and its work done. Other
  // options than name and max_in_flight are its owner's. errc::unsupported where there are no native streams, and while
  // it is being captured into a graph.
  result<stream> adopt_stream(void* native, stream_options options = {}) {
    auto adopted = used().adopt_stream(native, std::move(options));
    if (!adopted) return adopted.error();
    return stream(std::move(*adopted));
  }

  // What a cudaEvent_t stands for at this moment; it may be recorded again, or destroyed, afterwards.
  result<event> adopt_event(void* native) { return used().adopt_event(native); }

  // Memory of this device, or host memory known to it, that keep_alive owns: a tensor of another engine.
  // errc::wrong_device for another device's, and for pageable memory.
  result<buffer> adopt_memory(void* data, std::size_t bytes, std::shared_ptr<void> keep_alive) {
    return used().adopt_memory(data, bytes, std::move(keep_alive));
  }

  // For another process, or another device of this one. errc::unsupported for memory that is neither shared nor
  // exportable; errc::invalid_argument for a handle that is not what it says.
  result<memory_handle> export_memory(const buffer& memory) { return used().export_memory(memory); }
  result<buffer> import_memory(const memory_handle& handle) { return used().import_memory(handle); }

  // Threads that work on a launched kernel.
  int concurrency() const noexcept { return used().concurrency(); }

  const std::shared_ptr<detail::device_backend>& backend() const noexcept { return backend_; }

 private:
  detail::device_backend& used() const {
    COKV_REQUIRE(backend_, "a device is opened by open_device before it is used");
    return *backend_;
  }

  std::shared_ptr<detail::device_backend> backend_;
};

result<device> open_device(asio::any_io_executor ex, std::string_view name, device_options options = {});

// One line for a person: what the device is, or why it can't be opened here.
std::string explain_device(std::string_view name);

}  // namespace cokv

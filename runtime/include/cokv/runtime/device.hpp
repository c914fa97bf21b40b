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
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/stream.hpp"

namespace cokv {

struct device_options {
  int threads = 0;  // of the CPU's compute arena; 0: one a hardware thread
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
};

}  // namespace detail

class device {
 public:
  device() = default;
  explicit device(std::shared_ptr<detail::device_backend> backend) noexcept : backend_(std::move(backend)) {}
  explicit operator bool() const noexcept { return backend_ != nullptr; }

  std::string_view name() const noexcept { return backend_->name(); }
  const asio::any_io_executor& get_executor() const noexcept { return backend_->get_executor(); }

  result<stream> make_stream(stream_options options = {}) {
    auto made = backend_->make_stream(std::move(options));
    if (!made) return made.error();
    return stream(std::move(*made));
  }

  // Uninitialised (on a simulated device: poisoned). errc::out_of_memory, errc::unsupported for a kind it hasn't.
  result<buffer> allocate(std::size_t bytes, memory_kind kind = memory_kind::device) {
    return backend_->allocate(bytes, kind);
  }

  // Threads that work on a launched kernel.
  int concurrency() const noexcept { return backend_->concurrency(); }

  const std::shared_ptr<detail::device_backend>& backend() const noexcept { return backend_; }

 private:
  std::shared_ptr<detail::device_backend> backend_;
};

result<device> open_device(asio::any_io_executor ex, std::string_view name, device_options options = {});

// One line for a person: what the device is, or why it can't be opened here.
std::string explain_device(std::string_view name);

}  // namespace cokv

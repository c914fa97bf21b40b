// How links get at memory that the host can't reach, by copies of the device: through chunks of pinned memory, or of the
// device's own where NCCL carries them, or right into and out of memory of another process that the device has opened.
// Each way has chunks of its own: what comes in never waits for what goes out, which may have to wait for the peer.
#pragma once

#include <vector>

#include "cokv/kvstream/window.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/staging_pool.hpp"

namespace cokv::detail {

// Whether all of it can be read and written where it lies.
bool on_host(const std::vector<buffer>& pieces);

class device_reach {
 public:
  static result<std::unique_ptr<device_reach>> make(device& d, const device_staging& how,
                                                    memory_kind chunks = memory_kind::pinned);

  const device& on() const noexcept { return on_; }
  std::size_t count() const noexcept { return in_.count(); }
  std::uint64_t chunk() const noexcept { return in_.buffer_bytes(); }
  staging_pool& in() noexcept { return in_; }
  staging_pool& out() noexcept { return out_; }

  // The pieces, one behind the other, from the chunk and into it. The event is of the copies' end.
  result<event> bring(const buffer& chunk, const std::vector<buffer>& to);
  result<event> fetch(const std::vector<buffer>& from, const buffer& chunk);

  // Memory of this device for another process, and another process's.
  result<memory_handle> lend(const buffer& memory) { return on_.export_memory(memory); }
  result<buffer> borrow(const memory_handle& handle) { return on_.import_memory(handle); }
  // Between memory of this process and of another, or the other way; as many bytes on both sides. Errors: nothing was
  // begun; errc::queue_full until exchanging() has room, errc::wrong_device for memory that the device doesn't know.
  result<event> exchange(const std::vector<buffer>& to, const std::vector<buffer>& from);
  stream& exchanging() noexcept { return exchange_; }

 private:
  device_reach(device on, stream bring, stream fetch, staging_pool in, staging_pool out)
      : on_(std::move(on)),
        bring_(std::move(bring)),
        fetch_(std::move(fetch)),
        in_(std::move(in)),
        out_(std::move(out)) {}

  device on_;
  stream bring_, fetch_, exchange_;
  staging_pool in_, out_;
};

}  // namespace cokv::detail

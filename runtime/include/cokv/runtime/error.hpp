// cokv's error codes. Every operation that can fail as part of normal life completes with an error_code of this
// category (or of Asio's, or the operating system's); exceptions are for construction and for bugs.
//
//     auto [ec] = co_await done.async_wait(asio::as_tuple(asio::deferred));
//     if (ec == cokv::errc::deadline) ...
#pragma once

#include <stdexcept>
#include <string>

#include "cokv/runtime/asio.hpp"

namespace cokv {

enum class errc {
  deadline = 1,        // the operation did not end before its deadline
  queue_full,          // a bounded queue has no room: wait for room, or do less
  closed,              // used after close(), or closed while waiting
  out_of_memory,       // more memory asked for than the device, pool or store has
  out_of_range,        // an offset, length or index beyond the object it names
  unknown_device,      // no backend answers to this device name
  no_device,           // the backend exists, the device or its driver does not
  wrong_device,        // an event, buffer or stream of a device that cannot be used here
  device_failed,       // the device reported an error; everything behind it on the stream failed with it
  device_lost,         // the device is gone; open it again
  unsupported,         // a valid request that this build or peer cannot serve
  invalid_argument,    // a malformed value in a request
  not_found,           // no such key, block, file or route
  already_exists,      // the key, file or name is taken
  stale_reference,     // a block reference of an earlier generation
  digest_mismatch,     // bytes that are not the bytes that were written: never used
  namespace_mismatch,  // KV of another model, dtype, layout or shard
  protocol,            // the peer broke the protocol
  too_large,           // beyond a stated limit
  store_full,          // the store has no room and may not evict
  permission_denied,   // the caller's key does not allow this
  unavailable,         // the peer is down, or was given up on
  in_use,              // somebody else holds it: a folder that another process has open
  partial,             // some of it was done and some was not: the operation says what
};

const boost::system::error_category& cokv_category() noexcept;
inline error_code make_error_code(errc e) noexcept { return {static_cast<int>(e), cokv_category()}; }

// Input that a person has to correct: a file, field or flag. what() is one line that names it. Thrown while things
// are constructed; a command line turns it into that line and exit code 2.
class config_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace cokv

template <>
struct boost::system::is_error_code_enum<cokv::errc> : std::true_type {};

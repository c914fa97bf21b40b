// What the parts of http_store share: the connections, the counters, and what HTTP's statuses mean to a store.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/frame_stream.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/error.hpp"
#include "store/http_client.hpp"
#include "store/http_places.hpp"

namespace cokv::detail {

struct http_remote {
  std::shared_ptr<http_client> client;
  std::size_t max_blocks = 0;
  digest_algorithm digest = digest_algorithm::xxh3_64;
  store_info counters;
  std::shared_ptr<lent_memory> lent;  // null: not wanted, or the server is not on this machine

  void look_at(const http_head& answer) const;
};

// The unsigned number that a small JSON object holds under `name`; errc::protocol when it does not.
result<std::uint64_t> number_in(std::string_view text, std::string_view name);

awaitable<result<std::unique_ptr<block_writer>>> open_http_writer(std::shared_ptr<http_remote> remote,
                                                                  stream_begin about, write_options how);
awaitable<result<std::unique_ptr<block_reader>>> open_http_reader(std::shared_ptr<http_remote> remote,
                                                                  stream_begin about);

constexpr const char* stream_type = "Content-Type: application/vnd.cokv.frames\r\n";

inline std::string kv_target(const namespace_id& ns, std::string_view what) {
  return "/v1/kv/" + ns.hex().append(what);
}

inline error_code error_of(unsigned status) {
  switch (status) {
    case 400:
      return errc::invalid_argument;
    case 401:
    case 403:
      return errc::permission_denied;
    case 404:
      return errc::not_found;
    case 408:
      return errc::deadline;
    case 413:
      return errc::too_large;
    case 422:
      return errc::digest_mismatch;
    case 507:
      return errc::store_full;
    default:
      return status >= 500 ? errc::unavailable : errc::protocol;
  }
}

// What is wrong with it before anybody is asked.
inline error_code refused(const stream_begin& about, std::size_t max_blocks) {
  if (about.keys.empty() || about.layout.segments.empty()) return errc::invalid_argument;
  if (about.layout.layers() > geometry::max_layers || about.keys.size() > max_blocks) return errc::too_large;
  for (const auto bytes : about.layout.segments) {
    if (bytes == 0) return errc::invalid_argument;
    if (bytes > geometry::max_segment_bytes) return errc::too_large;
  }
  return {};
}

inline bool fit(const std::vector<buffer>& segments, std::size_t count, std::uint64_t bytes) {
  return segments.size() == count && std::all_of(segments.begin(), segments.end(), [&](const buffer& b) {
           return b.size() == bytes && b.host_accessible();
         });
}

// An operation that ends without done() has left its stream in the middle of something: the connection is closed.
template <class Body>
struct operation_guard {
  Body& body;
  bool over = false;
  explicit operation_guard(Body& b) : body(b) { body.busy = true; }
  operation_guard(const operation_guard&) = delete;
  void done() { over = true; }
  ~operation_guard() {
    body.busy = false;
    if (!over) body.fail();
  }
};

}  // namespace cokv::detail

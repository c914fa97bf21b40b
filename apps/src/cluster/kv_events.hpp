// What a worker tells of its KV (GET /v1/events, docs/protocol.md), line by line, and an index that follows it.
//
//     kv_event_reader read;
//     for (;;) { auto e = read.line(next_line()); if (!e) break; if (*e) apply(**e, 3, index); }
//     auto why = co_await follow_kv(worker.calls(), last_id, [&](const kv_event& e) { apply(e, 3, index); });
//
// The reader is pure. follow_kv() belongs to one context; every kind of cancellation ends it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cluster/fields.hpp"
#include "cluster/prefix_index.hpp"
#include "http/client.hpp"

namespace cokv::cluster {

struct kv_event {
  enum class what : std::uint8_t {
    stored,
    removed,
    overflow  // some were missed: what was known before is worth nothing
  };
  what kind = what::stored;
  std::string id;
  std::string tier;
  std::vector<block_key> keys;
};
void apply(const kv_event& e, prefix_index::worker at, prefix_index& index);

class kv_event_reader {
 public:
  static constexpr std::size_t most_keys = 4096;  // of one event

  // A line without its end. An event when it is complete; kinds that are not known are none. What is wrong sticks.
  parsed<std::optional<kv_event>> line(std::string_view text);

 private:
  std::string id_, kind_, data_;
};

// Each event behind the one named `last`, which becomes the newest heard: "" is from now on. Until the stream ends, and why:
// errc::unsupported: there is no such route.
awaitable<error_code> follow_kv(http::client& worker, std::string& last, std::function<void(const kv_event&)> heard);

}  // namespace cokv::cluster

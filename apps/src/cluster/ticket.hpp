// What a prefill and a decode worker tell each other of a prompt's KV through the router: `offer`, how the sender's KV is
// made and spread; `ticket`, where the receiver wants it. Both are pure JSON, bounded as they are read.
//
//     parsed<offer> from = read_offer(body.at("from"));
//     if (from->wire != mine.wire || from->fingerprint != mine.fingerprint) ...   // 422: another model's, or layout's
//     boost::json::object told = to_json(ticket{.id = id, .attempt = attempt, ...});
//
// Each worker of a model in parts has doors and legs of its own. `legs` are its inbound_stream's tickets, for all senders; they are
// empty when the receiver has all of the prompt already.
#pragma once

#include <boost/json/object.hpp>
#include <chrono>

#include "cluster/fields.hpp"
#include "cokv/kvstream/dtype.hpp"
#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/id256.hpp"
#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/kvstream/topology.hpp"

namespace cokv::cluster {

constexpr std::uint32_t most_attempts = 1024;
constexpr std::size_t most_links = 16;
constexpr std::size_t most_url_bytes = 1024;
constexpr std::uint32_t most_tokens = 1u << 24;  // of a prompt, where nobody says less
constexpr std::size_t most_leg_tickets = 4096;   // of one worker

// KV as it lies on the wire: what of a geometry two workers have to have in common.
struct kv_wire {
  std::uint32_t layers = 0, kv_heads = 0, head_dim = 0, block_tokens = 0;
  dtype type = dtype::f32;

  geometry shape() const { return geometry::attention(layers, kv_heads, head_dim, type, block_tokens); }
  std::uint64_t token_bytes() const { return std::uint64_t{2} * layers * kv_heads * head_dim * size_of(type); }
  friend bool operator==(const kv_wire&, const kv_wire&) = default;
};
// Whether KV of one can become KV of the other: but for the size of blocks, and the element type where `converts`.
bool fits(const kv_wire& a, const kv_wire& b, bool converts) noexcept;
boost::json::object to_json(const kv_wire& w);
parsed<kv_wire> read_wire(const boost::json::value& v);

// Who will send. `life` is random and of one run of a process: one that came back is another.
struct offer {
  std::string name, life;
  cokv::topology topology = cokv::topology();
  kv_wire wire;
  id256 fingerprint;      // of the model
  bool converts = false;  // it takes KV of another element type, and gives it: f32, f16 and bf16
  friend bool operator==(const offer&, const offer&) = default;
};
boost::json::object to_json(const offer& o);
parsed<offer> read_offer(const boost::json::value& v);

// Where one of the receiver's workers takes its part.
struct ticket_part {
  std::string life;                // that worker's
  std::vector<std::string> links;  // its doors' URLs, any of which will do
  std::vector<leg_ticket> legs;
};
boost::json::object to_json(const ticket_part& p);
parsed<ticket_part> read_part(const boost::json::value& v);

struct ticket {
  std::string id;
  std::uint32_t attempt = 0;
  std::vector<ticket_part>
      parts;  // by number in its topology, or of the first alone where nothing is wanted: it hears the words
  cokv::topology topology = cokv::topology();
  kv_wire wire;
  id256 fingerprint;
  std::uint32_t tokens = 0, first = 0;  // [first, tokens) are wanted: whole blocks before `first` it has
  std::vector<block_ref> blocks;
  std::chrono::milliseconds lease{};  // without a sign of the sender for so long it gives up
};
boost::json::object to_json(const ticket& t);
parsed<ticket> read_ticket(const boost::json::value& v, std::uint32_t most_prompt = most_tokens);

}  // namespace cokv::cluster

// What a decode worker says of a sequence that somebody began, and which of several another router goes on with. Pure.
//
//     parsed<begun_sequence> told = read_begun(json);                  // GET /v1/sequences/ID
//     const begun_choice c = choose(all);                              // what each worker that has one said
//     c.follow, or c.room where none can be followed                   // which of them
//     c.attempt                                                        // above it is what is begun anew
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <span>

#include "cluster/fields.hpp"

namespace cokv::cluster {

enum class begun_state : std::uint8_t {
  waits,    // for its KV, which whoever ordered it sends no more if that router is gone
  decodes,  // all KV is there
  over,     // all pieces are
  failed
};

struct begun_sequence {
  std::uint32_t attempt = 0;
  std::uint32_t pieces = 0;     // that it has
  std::uint32_t continues = 0;  // tokens that were told before its first piece, and nobody has any more
  begun_state state = begun_state::waits;

  // All of the answer is there, or will be.
  bool whole() const noexcept {
    return continues == 0 && (state == begun_state::decodes || state == begun_state::over);
  }
};
boost::json::object to_json(const begun_sequence& s);
parsed<begun_sequence> read_begun(const boost::json::value& v);

struct begun_choice {
  std::optional<std::size_t> follow;  // the whole one that has most pieces
  std::optional<std::size_t> room;    // else the newest that waits: what KV it has got is right
  std::uint32_t attempt = 0;          // the latest of all
};
begun_choice choose(std::span<const begun_sequence> all);

}  // namespace cokv::cluster

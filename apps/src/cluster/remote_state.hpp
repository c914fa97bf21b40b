// remote_answers from the inside: what is known of one answer, and how an attempt at it ended.
#pragma once

#include "cluster/remote_answers.hpp"
#include "cluster/ring.hpp"

namespace cokv::cluster {

struct remote_answers::state {
  state(const asio::any_io_executor& ex, std::string name) : id(std::move(name)), pieces(ex, 16), abandoned(ex, 1) {}

  // Of its sequence, to give it up: not one of a later attempt.
  std::string target() const { return "/v1/sequences/" + id + "?attempt=" + std::to_string(attempt); }

  const std::string id;
  bool named = false;             // and not looked for yet: somebody else may have begun it
  channel<generated> pieces;      // closed at the end
  error_code why = errc::closed;  // of the end
  channel<char> abandoned;        // closed when nobody wants it any more
  generation_report report;
  time_point start{};
  std::vector<token_id> told;  // to the reader
  seat decode;                 // where the sequence is, or may be
  std::uint32_t before = 0;    // tokens that were told before the sequence began that is in this life of a worker
  std::string life;
  std::uint32_t attempt = 0;  // the newest, from 1
  std::uint32_t living = 0;   // the one whose sequence is in that life
  bool held = false;          // it may have the sequence
  // Where it was decoded when that worker was lost: what copies are of.
  std::optional<std::pair<worker_table::id, lost_answer>> lost;
  bool lost_once = false;  // and who has copies is looked for once more, when a worker came that was waited for
  // For underway() alone.
  std::string prefill;  // where its prompt is, or was, computed
  std::uint32_t most = 0, moved = 0, resumed = 0;
};

// How an attempt ended.
struct remote_answers::outcome {
  enum class fault {
    none,    // the answer's end, by `why`
    prompt,  // where the prompt was computed, or on the way from there
    answer,  // where it is decoded
    room     // there was none
  };
  fault of = fault::none;
  error_code why;
};

}  // namespace cokv::cluster

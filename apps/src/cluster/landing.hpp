// One prompt on its way to the worker that will decode it: a room of KV blocks, the windows over it that its sender
// writes, and what the sender says. When all of it is there and verified, the answer decodes; until then its reader has the
// first token as soon as the sender knows it.
//
// Of a model in parts this is the leader's part of it, and all others' are opened and awaited with it (other_parts.hpp).
//
//     auto l = co_await landing::open(windows, engine, request, offer, {.id = id, .life = life, .links = door.urls()});
//     if (!l) return refused(l.error());
//     group.spawn((*l)->run(door));                            // before the ticket is told
//     reply(to_json((*l)->ticket()));
//     read((*l)->take_answer());
//
// |              | open()                               | run()                                                     |
// |--------------|--------------------------------------|-----------------------------------------------------------|
// | cancellation | every kind: nothing is left          | every kind: the answer ends with operation_aborted; it    |
// |              |                                      | still ends behind the last writer, as ever                |
// | blocks       | held from then on                    | held until nobody can write them: the answer's, or given  |
// |              |                                      | up but for the leading ones that were said to be there    |
// | completes    | the scheduler let it in              | success: it decodes, or was complete with its first token |
// | errors       | engine::receive's; errc::deadline:   | errc::unavailable: the sender is gone; errc::deadline: no |
// |              | not within `patience`;               | sign of it for `lease`; what it says; errc::protocol;     |
// |              | errc::namespace_mismatch: KV of      | operation_aborted: the answer was cancelled               |
// |              | another model, dtype or layout;      |                                                           |
// |              | inbound_stream::open's; the other    |                                                           |
// |              | workers'                             |                                                           |
//
// Belongs to the engine's context, and ends before the engine does.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/link_door.hpp"
#include "cluster/other_parts.hpp"
#include "cluster/ticket.hpp"
#include "cokv/engine/engine.hpp"

namespace cokv::cluster {

struct landing_options {
  std::string id;
  std::uint32_t attempt = 0;
  std::string life;                // this worker's
  std::vector<std::string> links;  // its doors
  bool converts = false;           // KV of another element type is taken too
  other_parts* others = nullptr;   // of a model in parts: each of them takes its own; outlives it
  duration patience = std::chrono::seconds(5);
  std::chrono::milliseconds lease = std::chrono::seconds(30);
};

class landing : public std::enable_shared_from_this<landing> {
 public:
  static awaitable<result<std::shared_ptr<landing>>> open(window_table windows, engine& e, generation_request r,
                                                          offer from, landing_options o);
  landing(const landing&) = delete;

  const cluster::ticket& ticket() const noexcept { return ticket_; }
  // Once. Whoever destroys it cancels the answer, and with it run().
  generation take_answer() { return std::move(answer_); }
  // Once.
  awaitable<error_code> run(link_door& door);
  bool decodes() const noexcept { return there_ && others_there_ && told_; }  // all KV is there

 private:
  landing(generation answer, arrival to, cluster::ticket t, std::optional<inbound_stream> in, route way, topology from,
          std::shared_ptr<part_tasks> others);

  awaitable<error_code> receive(std::shared_ptr<heard_words> heard);
  awaitable<error_code> bring(std::shared_ptr<heard_words> heard, stream_peers from);
  awaitable<error_code> await_others(std::shared_ptr<heard_words> heard);
  awaitable<error_code> watch_lease(std::shared_ptr<heard_words> heard);
  awaitable<error_code> end(error_code why, std::uint32_t kept);

  generation answer_;
  arrival to_;
  cluster::ticket ticket_;
  std::optional<inbound_stream> in_;  // none where all of the prompt was here
  route way_;
  topology from_;
  std::shared_ptr<part_tasks> others_;  // null: none has anything to take
  bool there_ = false;                  // all KV of this worker
  bool others_there_ = false;
  bool told_ = false;      // the first token
  bool complete_ = false;  // it ended the answer
};

}  // namespace cokv::cluster

// A decode worker's routes: it makes room for a prompt that another worker computes, and tells the answer piece by piece
// to whoever reads it, for as long as somebody does.
//
//     decode_service api(ex, entrance, {.max_sequence = engine.max_sequence()});
//     api.route(server);
//     group.spawn(api.run());                               // sequences are its children: it ends behind the last one
//     ...
//     api.close();
//
// | route                          | answer                                                                          |
// |--------------------------------|---------------------------------------------------------------------------------|
// | POST /v1/sequences             | 201 and a ticket; the same id and attempt again: the same ticket. 200           |
// |                                | {"running":true,"attempt":a,"pieces":n}: it decodes already, for that attempt.  |
// |                                | 409: a later one is here. 422: KV of another model or layout. 503: no room in time |
// |                                | With `lost` for `from`: 200 and "restored":n: it goes on from a copy of the     |
// |                                | answer that was lost, so many tokens of KV. 404: no copy is here                |
// | GET /v1/sequences/R            | {"attempt":a,"pieces":n,"continues":c,"state":s}: it tells n pieces of an answer   |
// |                                | behind c tokens that were told before; s is waits (for its KV), decodes, over or   |
// |                                | failed. 404                                                                       |
// | GET /v1/sequences/R/pieces     | lines (piece_json.hpp) from ?from=k on, and empty ones, which say that the      |
// |                                | worker is alive; a newer reader ends an older one. 404                          |
// | DELETE /v1/sequences/R         | 204, whether it was there or not; with ?attempt=k no later one than that        |
//
// A later attempt takes the place of one that has not got its KV: that one's room is given up, which keeps the blocks that
// are known to be right. A sequence that nobody reads for `orphan_grace` is cancelled; one that has ended is kept for a
// retry for `retention`.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cluster/request_json.hpp"
#include "cluster/ring.hpp"
#include "cluster/sequence_log.hpp"
#include "cluster/ticket.hpp"
#include "http/server.hpp"
#include "openai/backend.hpp"

namespace cokv::cluster {

// A prompt that was let in.
struct admitted {
  cluster::ticket ticket;
  std::unique_ptr<openai::answer> answer;  // readable at once; destroying it gives the prompt up
  // Ends when all KV is there, or when nobody can write the room any more.
  std::function<awaitable<error_code>()> run;
  std::function<bool()> decodes;  // all KV is there
  // Before a piece is told, by its number; none: nothing is waited for.
  std::function<awaitable<void>(std::uint32_t)> covered = {};
  std::uint32_t restored = 0;  // tokens whose KV came out of a copy
};

// Who lets prompts in, so that the routes are tested without an engine.
class entrance {
 public:
  virtual ~entrance() = default;
  // As landing::open.
  virtual awaitable<result<admitted>> open(generation_request r, offer from, std::string id, std::uint32_t attempt) = 0;
  // Goes on with an answer that another worker had begun, from the copy that is here: errc::not_found: there is none.
  virtual awaitable<result<admitted>> resume(generation_request r, lost_answer lost, std::string id,
                                             std::uint32_t attempt) {
    co_return errc::not_found;
  }
};

struct decode_options {
  std::uint32_t max_sequence = 0;           // tokens of a prompt
  std::size_t max_sequences = 4096;         // held, ended ones too; more: 503
  duration sign = std::chrono::seconds(2);  // a reader hears an empty line where there is nothing to tell for so long
  duration orphan_grace = std::chrono::seconds(10);
  duration retention = std::chrono::seconds(30);
};

class decode_service {
 public:
  decode_service(asio::any_io_executor ex, entrance& door, decode_options options);
  decode_service(const decode_service&) = delete;
  ~decode_service();

  void route(http::server& s);
  // Until close(), or until it is cancelled: sequences that are left are given up.
  awaitable<void> run();
  void close();

  std::size_t sequences() const noexcept;

 private:
  struct sequence;
  awaitable<void> create(http::exchange& x);
  awaitable<void> tell(http::exchange& x);
  awaitable<void> describe(http::exchange& x);
  awaitable<void> drop(http::exchange& x);
  awaitable<void> live(std::shared_ptr<sequence> s);
  awaitable<void> pump(std::shared_ptr<sequence> s);
  awaitable<bool> replace(std::shared_ptr<sequence> old);

  asio::any_io_executor ex_;
  entrance& door_;
  decode_options options_;
  // Of it and of its coroutines: a context that is destroyed drops them in any order.
  using book = std::map<std::string, std::shared_ptr<sequence>, std::less<>>;
  std::shared_ptr<book> sequences_ = std::make_shared<book>();
  std::shared_ptr<sequence> find(const http::exchange& x) const;  // null: none that anybody may read
  task_group* group_ = nullptr;                                   // while run() runs
  channel<char> closing_;
};

}  // namespace cokv::cluster

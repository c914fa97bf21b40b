// One worker's part in a ring in which each keeps a copy of its predecessor's KV: after every step the new KV of a
// microbatch goes to the successor, which acknowledges it; what others send here is kept for them. Who follows whom,
// and from where everybody goes on after a loss, replication_log.hpp decides, wherever it runs; a replicator carries.
//
//     cokv::replicator mine(windows, self, {.limit = 8_GiB, .acknowledged = tell_the_log});
//     mine.follow(log.epoch(), log.target(self));
//     group.spawn(mine.keep(link_from_predecessor));            // as long as that link lives
//     group.spawn(mine.send(link_to_successor));                // as long as the epoch, or the link
//     mine.open(7, most_bytes);
//     co_await mine.async_may_compute(7);                       // the successor is at most max_ahead steps behind
//     mine.computed(7, view, {slice(g, layers, table).tokens({n, 1})}, model.step(batch));
//
// After a loss every worker: follow(), awaits the end of the send() before it, recovered() for each microbatch, send()
// to its successor. The lost one's replacement: follow(), async_restore() of what recovery.restores says, restored();
// once the log has replaced it, every worker: replaced(), follow() and so on. Between a follow() and its recovered()
// nothing is computed.
//
// |              | send, keep                          | async_may_compute      | async_restore                   |
// |--------------|-------------------------------------|------------------------|---------------------------------|
// | cancellation | of the scope: what is under way     | every kind ends the    | every kind; what has begun      |
// |              | drains                              | wait                   | drains                          |
// | memory       | KV is referenced until sent; copies | none                   | of the view: until its last     |
// |              | until forgotten, `limit` in all     |                        | writer is done                  |
// | completes    | send: with success when a newer     | so many steps are kept | all of it is there, verified by |
// |              | epoch began; keep: with the link    | that one more may be   | the link                        |
// | errors       | the link's; protocol; send:         | store_full: [1]; [2];  | the link's; not_found,          |
// |              | stale_reference: the successor      | closed: not open       | out_of_range: not so many steps |
// |              | knows a newer epoch                 |                        | are kept, stale_reference: [3]  |
//
// [1] the successor's limit has no room for the microbatch; the others go on; [2] what kept a step from being sent that
// was this worker's own doing: the event's error, a block that was freed; [3] the holder knows a newer epoch.
//
// A holder that goes on itself, and not in the lost one's place, has what it kept by take().
//
// Everything carries its epoch, and what is of an older one than the receiver knows is dropped or refused, so a worker
// that was given up without being dead changes no copy any more: whoever restores or opens it anew first revokes the
// window into it. Memory for a copy is reserved when its microbatch is opened. Belongs to the windows' context; misuse
// (an unknown microbatch, a step before may_compute) throws std::invalid_argument.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cokv/kvstream/gather.hpp"
#include "cokv/kvstream/id256.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/kvstream/replication_log.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv {

struct replicator_options {
  std::uint32_t max_ahead = 1;                   // as the log's
  std::uint64_t limit = std::uint64_t{1} << 30;  // bytes kept for others
  // Where they are counted: replicators that share it share the limit.
  std::shared_ptr<std::uint64_t> kept = std::make_shared<std::uint64_t>(0);
  const packing* through = nullptr;  // as gather_options
  // The successor has the first `steps`: what the log is to be told.
  std::function<void(replication_log::microbatch_id, std::uint32_t steps, std::uint64_t epoch)> acknowledged = {};
};

// What a step computed: slices of a view, in an order that whoever restores it uses too.
struct replicated_step {
  kv_view view;
  std::vector<slice> what;
};

struct kept_step {
  std::uint64_t end = 0;  // bytes of all steps up to this one
  id256 tag;
};

// What was kept of a worker's microbatch: its steps one behind the other, each packed in slice order.
struct kept_copy {
  buffer memory;
  std::vector<kept_step> steps;
};

namespace detail {
struct replicator_state;
}

class replicator {
 public:
  using worker_id = replication_log::worker_id;
  using microbatch_id = replication_log::microbatch_id;

  // Throws config_error for max_ahead 0.
  replicator(window_table windows, worker_id self, replicator_options options = {});

  // The ring as it is from this epoch on; alone, a worker is not held up. A send() of before ends. What is of an older
  // epoch changes nothing.
  void follow(std::uint64_t epoch, std::optional<worker_id> successor);
  std::uint64_t epoch() const noexcept;

  // At most so many bytes of KV, all its steps together.
  void open(microbatch_id m, std::uint64_t bytes);
  // Its copies here and at the successor are forgotten.
  void close(microbatch_id m);
  // This worker's copy of it at the successor is: what is kept here is, when its owner closes it.
  void close_own(microbatch_id m);
  bool may_compute(microbatch_id m) const;
  bool all_kept(microbatch_id m) const;
  // One step more, to be sent when `ready` is. `tag` is kept with it: whatever names what it was computed of.
  void computed(microbatch_id m, replicated_step step, event ready = {}, const id256& tag = {});
  std::uint32_t steps(microbatch_id m) const;
  std::uint32_t acknowledged(microbatch_id m) const;

  // Steps from `resume` on are computed again, `safe` of them are kept by somebody that lives: as recovery.resume and
  // safe_steps() of the log say.
  void recovered(microbatch_id m, std::uint32_t resume, std::uint32_t safe);
  // A replacement has these steps now, and whoever it got them from keeps them.
  void restored(microbatch_id m, std::vector<replicated_step> steps, worker_id kept_by);

  // void(error_code)
  template <class Token = asio::deferred_t>
  auto async_may_compute(microbatch_id m, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [s = state_, m](detail::done_handler h) { wait_until_ahead(s, m, {}, std::move(h)); });
  }
  // Likewise until all its steps are, for who may be further ahead at some steps than at others.
  template <class Token = asio::deferred_t>
  auto async_all_kept(microbatch_id m, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [s = state_, m](detail::done_handler h) { wait_until_ahead(s, m, 1, std::move(h)); });
  }

  // Carries this worker's KV to its successor. One at a time; send() and keep() may outlive the replicator.
  awaitable<error_code> send(peer_link successor);
  // Keeps what comes over this link, and gives it back. What is of a newer epoch waits until follow() says so here too.
  // `owner`: whose it has to be, where that is known of the link.
  awaitable<error_code> keep(peer_link from, std::optional<worker_id> owner = {});

  // What is kept here of another's microbatch; it is forgotten, and nobody writes it any more. errc::not_found;
  // errc::stale_reference: it was opened anew, or forgotten, meanwhile.
  awaitable<result<kept_copy>> take(worker_id owner, microbatch_id m);

  // Another has the lost worker's place, and what is kept of it. To be told before the follow() of that epoch.
  void replaced(worker_id lost, worker_id fresh);
  // Forgets copies that the predicate does not want: of workers to which the log's keeps() says no, of microbatches that are
  // over.
  void retain(const std::function<bool(worker_id, microbatch_id)>& wanted);
  // Of copies of this microbatch no more than the first `steps` are of use.
  void cut(microbatch_id m, std::uint32_t steps);
  // What is kept of this worker, in steps.
  std::map<microbatch_id, std::uint32_t> kept(worker_id owner) const;
  // Forgets copies that nobody has sent to for so long, as calls of this saw it: their owner's link is down, or it has not
  // opened them in this epoch.
  void forget_unfed(duration age);
  std::uint64_t bytes_kept() const noexcept;  // by all that share the count
  std::size_t copies() const noexcept;

  asio::any_io_executor get_executor() const;

 private:
  static void wait_until_ahead(std::shared_ptr<detail::replicator_state> s, microbatch_id m,
                               std::optional<std::uint32_t> ahead, detail::done_handler h);
  std::shared_ptr<detail::replicator_state> state_;
};

// What the holder on the other side of a link, in its keep(), is to give back.
struct restore_request {
  std::uint64_t epoch = 0;
  replication_log::worker_id lost = 0;
  replication_log::microbatch_id microbatch = 0;
  std::vector<replicated_step> steps;  // where they go: the same selections, in memory of one's own
  const packing* through = nullptr;    // as scatter_options
};

namespace detail {
awaitable<result<transferred>> restore(peer_link from, restore_request what);
}

// void(error_code, transferred). One at a time over a link.
template <class Token = asio::deferred_t>
auto async_restore(peer_link from, restore_request what, Token&& token = Token()) {
  auto ex = from.get_executor();
  return detail::initiate_erased<void(error_code, transferred)>(
      std::forward<Token>(token), ex, [ex, from, what](detail::transfer_handler h) {
        detail::start_transfer(ex, detail::restore(from, what), std::move(h));
      });
}

}  // namespace cokv

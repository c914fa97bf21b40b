// answer_copies from the inside: who is sent to, what is sent, and how the pieces of a copy are called.
#pragma once

#include <array>
#include <deque>
#include <set>

#include "cluster/answer_copies.hpp"
#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/packer.hpp"

namespace cokv::cluster {

constexpr auto try_again = std::chrono::milliseconds(100);  // a successor that could not be reached

// A worker, and a piece of a copy of that life's, as replicators number them: an answer that is begun anew by the same name,
// at another worker or in another life, is another.
replicator::worker_id worker_of(std::string_view life);
replicator::microbatch_id copy_of(const std::string& life, const std::string& id, std::uint32_t attempt,
                                  std::uint32_t round, std::size_t stretch);
// The tag of no tokens: KV of another shape has other tags.
block_key root_of(const kv_wire& w);

// Those that are `rank` + 1 places further on in the ring.
struct answer_copies::rank {
  rank(const window_table& windows, std::size_t n, link_options greeting, const copies_options& o,
       replicator_options how, std::unique_ptr<packer> packer_of)
      : number(n),
        packs(std::move(packer_of)),
        copies(windows, worker_of(o.life), std::move(how)),
        links(
            windows,
            [&] {
              greeting.name = "ring/" + std::to_string(n) + '/' + o.life;
              greeting.silence = std::min<duration>(greeting.silence, std::chrono::seconds(3));
              return std::move(greeting);
            }(),
            try_again),
        changed(windows.get_executor()) {}

  const std::size_t number;
  const std::unique_ptr<packer> packs;
  replicator copies;
  link_pool links;
  std::optional<ring_member> successor;
  bool up = false;  // it is sent to
  news changed;
};

struct answer_copies::state {
  state(window_table w, device d, copies_options o)
      : windows(std::move(w)), where(std::move(d)), options(std::move(o)), closing(windows.get_executor(), 1) {}

  asio::any_io_executor ex() const { return windows.get_executor(); }
  void tell_all();

  window_table windows;
  device where;
  copies_options options;
  stream moves;
  std::unique_ptr<packer> unpacks;  // what comes back out of copies
  ring_place place;
  std::array<std::shared_ptr<rank>, most_replicas> ranks;
  std::map<replicator::microbatch_id, followed*> by_copy;
  std::set<followed*> all;  // which take themselves out
  std::uint64_t waited_in_vain = 0, restored = 0;
  channel<char> closing;
};

// One sequence of this worker's, and which stretches of it are copied how far.
class answer_copies::followed final : public answer_follower, public std::enable_shared_from_this<followed> {
 public:
  followed(std::shared_ptr<state> of, std::string id, std::uint32_t attempt, std::uint32_t prompt);
  ~followed() override;

  void computed(index_range tokens, std::span<const token_id> what, sequence_blocks where) override;
  void preempted() override;
  awaitable<void> covered(std::uint32_t tokens) override;

  // Something of it was kept by a successor, or there is one less, or more.
  void note();
  // Another successor, that has nothing yet: it is not waited for until it has caught up.
  void begin_anew(std::uint32_t rank);

 private:
  struct stretch {
    replicator::microbatch_id name = 0;
    std::uint32_t room = 0;           // tokens
    std::vector<std::uint32_t> ends;  // of its steps, as tokens of the sequence
  };

  bool open(index_range tokens);  // false: the name is in use, and this sequence goes without copies
  void forget();
  std::uint32_t tokens_at(const replicator& copies) const;
  bool there(std::uint32_t tokens) const;
  awaitable<void> until(std::uint32_t tokens);

  const std::shared_ptr<state> s_;
  const std::string id_;
  const std::uint32_t attempt_, prompt_, ranks_;
  block_key tag_;
  std::vector<stretch> stretches_;
  std::uint32_t round_ = 0;
  bool behind_ = false;
  std::deque<std::pair<std::uint32_t, std::vector<block_hold>>> held_;  // of steps, by their ends, until they are kept
  news changed_;
};

}  // namespace cokv::cluster

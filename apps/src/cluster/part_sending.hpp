// One worker's part of a prompt's KV on its way to a ticket's rooms: an engine's, or another worker's of its model.
//
//     auto told = std::make_shared<told_parts>(ex, layers, number);        // the prompt_sink
//     part_sending mine{.mine = wire, .split = split, .self = who, .shape = pool.shape(), .to = ticket, .told = told};
//     if (auto ec = co_await mine.connect(links)) ...                       // to those that it sends to
//     if (auto ec = co_await mine.stream()) ...                             // all of it is there, verified and committed
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "cluster/converters.hpp"
#include "cluster/link_pool.hpp"
#include "cluster/news.hpp"
#include "cluster/ticket.hpp"
#include "cluster/word.hpp"
#include "cokv/engine/prompt_sink.hpp"

namespace cokv::cluster {

// What is told of a prompt, for the coroutine that sends it. Bounded by the prompt: each layer of each chunk once.
class told_parts final : public prompt_sink {
 public:
  struct part {
    std::uint32_t layer;
    std::uint64_t end;  // tokens before it are there
    event computed;
  };

  told_parts(asio::any_io_executor ex, std::uint32_t layers, std::uint64_t number = 0)
      : changed(std::move(ex)), layers_(layers), number_(number) {}

  void begun(prompt_blocks w, std::uint32_t there) override;
  void layer(std::uint32_t layer, index_range tokens, event computed) override;
  // What was sent of the blocks it had is no use to a stream of those it will have: whoever asked asks once more. They stay what they
  // are until release(): other workers may still read theirs.
  void preempted() override;
  void release() { where.reset(); }
  // Nothing more of it is told to others once it was preempted.
  std::uint64_t number() const noexcept override { return lost ? 0 : number_; }

  std::optional<prompt_blocks> where;
  std::deque<part> parts;
  bool lost = false;
  news changed;

 private:
  std::uint32_t layers_;
  std::uint64_t number_;
};

struct part_sending {
  kv_wire mine;    // of the whole model
  topology split;  // its workers, and which of them this is
  worker self = {};
  geometry shape;  // of its pool
  const cluster::ticket& to;
  std::shared_ptr<told_parts> told;
  std::size_t in_flight = 64;
  const packing* through = nullptr;
  converters* convert = nullptr;
  std::function<void(std::uint32_t)> settled = {};  // so many leading tokens of its part are there
  std::vector<peer_link> links = {};                // by number of the receiver's worker
  bool sends = false;                               // some of it; known by connect()
  std::uint64_t bytes = 0;

  // The ticket is of KV like this, and of a topology that there is a way to.
  bool fits() const;
  // To those that it has something for; also to the first, where `speaks`. link_pool::get's errors.
  awaitable<error_code> connect(link_pool& pool, bool speaks);
  // Says there that this is who brings it.
  awaitable<error_code> say_begin();
  // As it is told. Success at once where nothing of it is to be sent from here. The blocks are held, by `told`, until its owner lets
  // go of them.
  awaitable<error_code> stream();

 private:
  route way() const;
  std::vector<leg_target> targets(const route& r) const;
};

}  // namespace cokv::cluster

// The leader's hold on the other workers of its model, each of which moves its part of prompts' KV as it is told.
//
//     other_parts others(ex, split.workers());
//     group.spawn(others.run(links));                          // by number, its own empty; until one of them ends
//     auto tasks = others.begin({.kind = part_note::what::land, .land = ...});
//     if (auto why = co_await tasks->ready()) ...              // all of them are: tasks->parts()
//     if (auto why = co_await tasks->over()) ...               // success: all have what was to come
//     co_await tasks->end();                                   // nothing of it is under way anywhere any more
//
// |              | ready(), over()                                   | end()                                          |
// |--------------|---------------------------------------------------|------------------------------------------------|
// | completes    | all are; or the first error that one said         | all are over                                   |
// | cancellation | every kind: ends the wait, and nothing else       | none: it ends when they do, or their links     |
// | errors       | what the worker says; errc::unavailable: its link | none                                           |
//
// Of a model that is whole there are no others, and tasks are over as they begin. Whoever begins tasks awaits end() before the
// blocks are another's; tasks that nobody holds are told to end. A worker whose link has ended touches them no more before it joins again (part_mover.hpp). Belongs to one
// context; tasks may outlive it.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cluster/news.hpp"
#include "cluster/part_note.hpp"
#include "cokv/runtime/task_group.hpp"

namespace cokv::cluster {

class part_tasks {
 public:
  part_tasks(const part_tasks&) = delete;
  ~part_tasks() { tell_end(); }
  awaitable<error_code> ready();
  awaitable<error_code> over();
  awaitable<void> end();

  std::uint64_t number() const noexcept { return number_; }
  std::vector<ticket_part> parts() const;  // of all others, behind ready()
  // The fewest leading tokens that one of them said, and at the most `own`.
  std::uint32_t kept(std::uint32_t own) const;
  std::uint64_t bytes() const;  // of all of them
  void on_kept(std::function<void()> told) { told_kept_ = std::move(told); }

 private:
  friend class other_parts;
  struct one {
    bool ready = false, over = false, ended = false;  // ended: it was told to
    error_code code;
    std::optional<ticket_part> part;
    std::uint32_t kept = 0;
    std::uint64_t bytes = 0;
  };
  struct hold;  // of who waits
  part_tasks(asio::any_io_executor ex, std::uint64_t number, std::size_t others)
      : ex_(std::move(ex)), number_(number), all_(others) {}
  void heard(std::size_t who, part_note n);
  void changed();
  void tell_end();
  awaitable<error_code> until(bool one::* what);

  asio::any_io_executor ex_;
  std::uint64_t number_;
  std::vector<one> all_;
  // Theirs too who wait: a context that is destroyed drops them in any order.
  std::shared_ptr<std::vector<news*>> waiting_ = std::make_shared<std::vector<news*>>();
  std::function<void()> told_kept_;
  std::function<void(std::size_t, part_note)> say_;
};

class other_parts {
 public:
  other_parts(asio::any_io_executor ex, std::uint32_t workers);
  other_parts(const other_parts&) = delete;
  ~other_parts();

  // With links to all of them. When one ends, so do the others, and, when `lost` was called, all tasks.
  awaitable<void> run(std::vector<peer_link> links, std::function<void()> lost = {});
  // While run() runs; before, its tasks are over at once: errc::unavailable. The note's task is numbered here.
  std::shared_ptr<part_tasks> begin(part_note n);

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace cokv::cluster

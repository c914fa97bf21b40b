// A decode worker's layers that prefill workers keep (--borrow-from): which and how many, by what is measured, and a lender
// again when one is gone.
//
//     auto b = co_await borrowing::open(device, options, config, plain);  // waits until somebody lends
//     if (b->needed()) b->put_into(plain);                               // and the engine is made of that
//     group.spawn(b->run(engine));                                       // until it is cancelled
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cluster/loan.hpp"
#include "cokv/engine/engine.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

class borrowing {
 public:
  // What decides: rates in bytes a second, and how long nothing but a fetch takes.
  struct rates {
    double link = 0, memory = 0;
    std::chrono::duration<double> overhead{0};
  };
  // Of so many layers, and blocks that fit into the worker's own memory without a lender.
  struct need {
    geometry shape;
    std::uint32_t blocks = 0;
    double weight_bytes = 0;
  };
  struct plan {
    std::uint32_t layers = 0;  // lent; 0: none hides
    std::uint32_t blocks = 0;  // that there are then
    std::uint64_t bytes = 0;   // of the lender's
  };
  // The most layers that hide (lending_bound.hpp) and for which `free` suffices, or `wanted` where somebody says so. Fewer
  // than three would cost memory: two layers stay for what comes. errc::out_of_memory: `free` is too little for any.
  static result<plan> decide(const need& n, const rates& r, std::uint64_t free, std::uint32_t wanted);
  // Of a neighbour's memory, fetched into the device's in pieces as a pager does it, and of the device's own.
  static awaitable<result<rates>> measure(device where, source from, std::uint64_t piece);

  // `plain`: the engine's options without. Throws config_error naming the flag: URLs, keys, nobody who lends (enough) in a
  // minute, layers that leave no block.
  static awaitable<std::unique_ptr<borrowing>> open(device where, const options& o, const model_config& config,
                                                    const engine_options& plain);
  borrowing(const borrowing&) = delete;

  bool needed() const noexcept { return plan_.layers > 0; }
  void put_into(engine_options& o);
  // Tells the engine when the loan is gone, and finds it another.
  awaitable<void> run(engine& e);

 private:
  borrowing(device where, const options& o);
  awaitable<error_code> look(std::size_t lender, const need& n, std::uint32_t wanted);
  awaitable<result<cluster::loan>> ask();
  awaitable<error_code> lend_to(engine& e, const cluster::loan& l);

  device where_;
  window_table windows_;
  std::deque<http::client> lenders_;
  std::size_t last_ = 0;  // who lent
  std::uint64_t piece_ = 0;
  plan plan_;
  std::vector<std::uint32_t> layers_;
  cluster::loan loan_;
};

}  // namespace cokv::serve

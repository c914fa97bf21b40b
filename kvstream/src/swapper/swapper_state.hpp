// A swapper from the inside: the schedule, the slots' streams, and what became of each microbatch's copies.
#pragma once

#include <map>

#include "cokv/kvstream/swapper.hpp"
#include "detail/changes.hpp"

namespace cokv::detail {

swap_place place_of(const kv_pool& pool, const std::vector<block_lease>& leases, const swapper_options& o);

struct swapper_state : std::enable_shared_from_this<swapper_state> {
  using microbatch_id = swapper::microbatch_id;
  using move = swap_schedule::move;

  struct item {
    std::vector<block_lease> leases;
    std::optional<swap_place> host;
    std::uint32_t tokens = 0;
    event arrived, computed;
    bool begun = false;  // somebody computes, or did, with what arrived last
    error_code failed;   // of a copy: to be reported once
    error_code broken;   // its KV is lost
  };
  struct slot {
    std::vector<block_lease> leases;
    std::optional<swap_place> place;
    stream copies;
    event copied, computed;          // the last uses of it: a step that failed says nothing about the copy before it
    std::weak_ptr<const item> user;  // for whom

    // What it still has to wait for.
    std::optional<event> busy() const {
      for (const auto& e : {copied, computed})
        if (!e.ready()) return e;
      return {};
    }
  };
  // A copy that failed: the schedule does not know yet, and so does not ask for it again.
  struct held {
    move what;
    error_code why;
  };

  swapper_state(device d, kv_pool& on_device, kv_pool& on_host, swapper_options o);

  item& known(microbatch_id m);
  // A step was enqueued: where it fails, KV that it was to make is missing.
  void computed(microbatch_id m, bool makes_kv);
  // Starts what the schedule asks for.
  void pump();
  // What failed may be tried again.
  void rearm();
  error_code retry(microbatch_id m, item& it);

  device gpu;
  kv_pool& host_pool;
  swapper_options options;
  swap_schedule schedule;
  std::vector<slot> slots;
  std::map<microbatch_id, std::shared_ptr<item>> items;
  std::vector<held> failures;
  std::size_t under_way = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;
  changes changed;

 private:
  void bring_in(const move& m, const std::shared_ptr<item>& it);
  void write_out(const move& m, const std::shared_ptr<item>& it);
  result<std::uint64_t> copy(const move& m, const item& it);
  void hold(const move& m, const std::shared_ptr<item>& it, error_code why);
  void arrival(std::uint32_t slot, const std::shared_ptr<item>& it, error_code ec);
  void renew(std::uint32_t slot);
  template <class F>
  void when(const event& e, F f);
};

}  // namespace cokv::detail

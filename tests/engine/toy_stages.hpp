// All workers of the toy model in virtual time, and what becomes of who asks them: the whole model's answer, or the beginning of
// it and an error.
#pragma once

#include "cokv/runtime/sim_device.hpp"
#include "engine/stage_fixture.hpp"
#include "engine/toy_engine.hpp"

namespace cokv::test {

inline sim_context& context_of(const asio::any_io_executor& ex) {
  return static_cast<sim_context&>(asio::query(ex, asio::execution::context));
}

struct toy_stages : part_workers {
  toy_stages(asio::any_io_executor ex, topology split, engine_options o = {}, toy_price price = {},
             std::uint64_t copies = 0, std::string device = "sim:h200")
      : part_workers(
            ex, std::move(device), std::move(split),
            [price](model_part p) { return std::make_shared<toy_model>(price, std::vector<token_id>(), std::move(p)); },
            toy_engine::pinned(std::move(o)), copies) {}

  // How likely an operation of its devices fails from here on, "sim:h200"s, and a copy beside that.
  void faulty(double operations, double copies) {
    for (std::uint32_t n = 0; n < split.workers(); ++n) {
      auto& faults = sim::device::of(context_of(ex), "sim:h200:" + std::to_string(n)).faults;
      faults.fail = operations, faults.fail_copy = copies;
    }
  }
};

struct stage_tally {
  std::uint64_t right = 0, failed = 0, cancelled = 0;
  bool devices_fail = false;  // the leader's too: its requests say so
};

// Gives up after `patience`, where there is one.
inline awaitable<void> read_right(generation g, std::vector<token_id> prompt, std::uint32_t n, duration patience,
                                  stage_tally& out) {
  const auto got = co_await read_for(std::move(g), patience);
  auto want = toy_answer(prompt, n);
  if (got.ended == asio::error::eof) {
    ++out.right;
  } else {
    CHECK((got.ended == asio::error::operation_aborted || got.ended == errc::unavailable ||
           (out.devices_fail && got.ended == errc::device_failed)));
    ++(got.ended == asio::error::operation_aborted ? out.cancelled : out.failed);
    REQUIRE(got.tokens.size() <= want.size());
    want.resize(got.tokens.size());
  }
  CHECK(got.tokens == want);
}

// So many requests of one length, begun together.
inline awaitable<void> at_once(toy_stages& s, std::size_t count, std::size_t prompt, std::uint32_t n,
                               stage_tally& out) {
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto p = toy_prompt(prompt, i);
      group.spawn(read_right(s.leader->submit(toy_request(p, n)).value(), p, n, {}, out));
    }
  });
  if (!v) throw boost::system::system_error(v.error());
}

// A scope that stops the workers when the body is over.
template <class Body>
awaitable<void> joined(toy_stages& s, Body body) {
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    co_await s.join_all(group);
    co_await body();
    co_await s.leader->async_drain(asio::as_tuple(asio::deferred));
    s.stop();
  });
  if (!v) throw boost::system::system_error(v.error());
}

}  // namespace cokv::test

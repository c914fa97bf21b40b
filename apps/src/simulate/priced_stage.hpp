// A model's stage that takes the time of its price on a simulated device and computes nothing: every token is the same one. Its
// ranks are one device, and so are its layers, unless somebody is told of each; KV has a byte a token and layer, for no block is
// looked into.
#pragma once

#include <memory>

#include "cokv/engine/model.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/event.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "cokv/runtime/trace.hpp"
#include "simulate/price.hpp"
#include "simulate/shared_cores.hpp"

namespace cokv::simulate {

// The devices that stages run on, "sim:stage:N": prices are told in their operations, so that they are exact.
void define_stage_device(sim_context& context);
// And "sim:NAME:N", of stages whose KV is copied to others, and back: of so many tokens a second.
void define_copied_stage(sim_context& context, std::string name, double tokens_per_second);

// Of a replica's stages together: how long at least one of them was at work.
struct stage_activity {
  std::uint32_t busy = 0;  // now
  time_point since{};
  duration all{};

  void begins(time_point now) {
    if (busy++ == 0) since = now;
  }
  void ends(time_point now) {
    if (--busy == 0) all += now - since;
  }
};

struct stage_shape {
  topology split;
  std::uint32_t stage = 0;
  std::uint32_t row_bytes = 4;  // of a token between two stages
  std::uint32_t max_positions = 8192;
  std::uint32_t layers = 1;     // computed one behind the other, each in an equal part of a step's time
  std::uint32_t of_layers = 1;  // of the whole model, for those that compare their KV
  bool waits = false;           // steps wait for their KV on its device, and are at work behind that
};

class priced_stage final : public model, public std::enable_shared_from_this<priced_stage> {
 public:
  priced_stage(clock& time, std::shared_ptr<const price> what, stage_shape shape, std::shared_ptr<stage_activity> all);
  // Its steps are told there from here on, on a track of that name.
  void show(trace::recorder& to, std::string track) { spans_ = &to, track_ = std::move(track); }
  // It computes on these, with others, and all its layers are done when the last is. `ex`: of its host.
  void share(std::shared_ptr<shared_cores> with, const asio::any_io_executor& ex) {
    cores_ = std::move(with);
    begun_ = 0;
    computed_ = std::make_shared<detail::timeline_core>(ex);
  }
  // What it computes will never be done: its device is lost.
  void stop();
  // What waits for its step waits no longer.
  void leave() {
    cores_.reset();
    if (computed_) computed_->fail(computed_->value() + 1, errc::closed);
  }

  const model_config& config() const noexcept override { return config_; }
  model_part part() const noexcept override { return {split_, {stage_, 0}}; }
  shard kv_shard() const noexcept override { return {.of_layers = of_layers_}; }
  dtype compute_type() const noexcept override { return dtype::bf16; }
  const id256& fingerprint() const noexcept override { return fingerprint_; }
  geometry kv_geometry(std::uint32_t block_tokens) const override;

  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool&, stream& compute) override;
  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override;
  error_code sample(const std::shared_ptr<batch>& step, stream& compute) override;

  std::uint64_t steps() const noexcept { return steps_; }
  double busy() const noexcept { return busy_; }  // seconds, of all steps so far
  // Of the time in which any stage of the replica was at work, the share in which this one was not.
  double bubble() const noexcept;
  std::uint64_t rows() const noexcept { return rows_; }  // tokens, of all steps

 private:
  // A step that is being enqueued.
  struct running {
    step what;
    double layer = 0, behind = 0;  // seconds: of each; of what comes behind the last
    time_point begun{};
  };
  void begins();
  error_code end(const std::shared_ptr<batch>& b, double seconds, stream& compute);
  void over(batch& b, const step& s);

  clock& time_;
  std::shared_ptr<const price> price_;
  topology split_;
  std::uint32_t stage_, of_layers_;
  const bool waits_;
  running now_;
  bool at_work_ = false;
  time_point ended_{};     // its last step
  std::uint64_t job_ = 0;  // of the cores that it shares
  model_config config_;
  id256 fingerprint_;
  trace::recorder* spans_ = nullptr;
  std::string track_;
  std::shared_ptr<stage_activity> activity_;
  std::shared_ptr<shared_cores> cores_;  // none: nobody computes there but it
  std::shared_ptr<detail::timeline_core> computed_;
  std::uint64_t begun_ = 0;
  double busy_ = 0;
  std::uint64_t rows_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace cokv::simulate

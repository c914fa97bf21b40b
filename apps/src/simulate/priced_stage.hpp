// A model's stage that takes the time of its price on a simulated device and computes nothing: every token is the same one. All its
// layers are one, and its ranks one device; KV has a byte a token, for no block is looked into.
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

class priced_stage final : public model, public std::enable_shared_from_this<priced_stage> {
 public:
  // `row_bytes`: of a token between two stages. `max_positions`: of a sequence.
  priced_stage(clock& time, std::shared_ptr<const price> what, topology split, std::uint32_t stage,
               std::uint32_t row_bytes, std::uint32_t max_positions, std::shared_ptr<stage_activity> all);
  // Its steps are told there from here on, on a track of that name.
  void show(trace::recorder& to, std::string track) { spans_ = &to, track_ = std::move(track); }
  // It computes on these, with others. `ex`: of its host.
  void share(std::shared_ptr<shared_cores> with, const asio::any_io_executor& ex) {
    cores_ = std::move(with);
    computed_ = std::make_shared<detail::timeline_core>(ex);
  }
  // What waits for its step waits no longer.
  void leave() {
    cores_.reset();
    if (computed_) computed_->fail(computed_->value() + 1, errc::closed);
  }

  const model_config& config() const noexcept override { return config_; }
  model_part part() const noexcept override { return {split_, {stage_, 0}}; }
  dtype compute_type() const noexcept override { return dtype::bf16; }
  const id256& fingerprint() const noexcept override { return fingerprint_; }
  geometry kv_geometry(std::uint32_t block_tokens) const override;

  error_code forward(std::uint32_t, const std::shared_ptr<batch>& step, const kv_pool&, stream& compute) override;
  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override { return {}; }
  error_code sample(const std::shared_ptr<batch>& step, stream& compute) override;

  std::uint64_t steps() const noexcept { return steps_; }
  double busy() const noexcept { return busy_; }  // seconds, of all steps so far
  // Of the time in which any stage of the replica was at work, the share in which this one was not.
  double bubble() const noexcept;
  std::uint64_t rows() const noexcept { return rows_; }  // tokens, of all steps

 private:
  void over(batch& b, const step& s, time_point begun);

  clock& time_;
  std::shared_ptr<const price> price_;
  topology split_;
  std::uint32_t stage_;
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

#include "simulate/prompt_transfer.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::simulate {

// What a stage is told of the prompt. The first one's holds the blocks.
class prompt_transfer::stage_sink final : public prompt_sink {
 public:
  stage_sink(prompt_transfer& all, std::uint32_t stage) : all_(all.weak_from_this()), number_(all.number_) {
    const auto& mine = *all.from_.stages()[stage];
    stage_ = stage;
    layers_ = all.from_.layers(stage);
    told_ = mine.config().layers;
  }
  void begun(prompt_blocks where, std::uint32_t) override { where_ = std::move(where); }
  void layer(std::uint32_t layer, index_range tokens, event when) override {
    const auto all = all_.lock();
    if (!all) return;
    const index_range what = told_ == 1 ? layers_ : index_range{layers_.first + layer, 1};
    all->computed(stage_, what, static_cast<std::uint32_t>(tokens.count), when);
  }
  void preempted() override {
    const auto all = all_.lock();
    if (!all) return;
    (*all->on_loss_)();
  }
  std::uint64_t number() const noexcept override { return number_; }
  void release() { where_ = {}; }

 private:
  std::weak_ptr<prompt_transfer> all_;
  std::uint64_t number_;
  std::uint32_t stage_ = 0, told_ = 1;
  index_range layers_;
  prompt_blocks where_;
};

prompt_transfer::prompt_transfer(asio::any_io_executor ex, replica& from, replica& to, std::uint32_t tokens)
    : ex_(ex),
      from_(from),
      to_(to),
      left_(std::uint64_t{tokens} * from.kv().layers),
      number_(from.next_number()),
      changed_(std::move(ex)),
      on_loss_(std::make_shared<std::function<void()>>([this] {
        lost_ = true;
        changed_.tell();
      })) {
  from_.tell_of_loss(on_loss_);
  to_.tell_of_loss(on_loss_);
}

std::shared_ptr<prompt_sink> prompt_transfer::begin() {
  for (std::uint32_t s = 0; s < from_.stages().size(); ++s) {
    sinks_.push_back(std::make_shared<stage_sink>(*this, s));
    if (s > 0) from_.watch(s, number_, sinks_[s]);
  }
  return sinks_[0];
}

// To each stage what it has of these layers.
void prompt_transfer::computed(std::uint32_t stage, index_range layers, std::uint32_t tokens, const event& when) {
  const auto of_stage = from_.layers(stage).count;
  for (std::uint32_t s = 0; s < to_.stages().size(); ++s) {
    const auto theirs = to_.layers(s);
    const auto first = std::max(layers.first, theirs.first);
    const auto end = std::min(layers.end(), theirs.end());
    if (first >= end) continue;
    const auto n = end - first;
    from_.outlet(stage).send({.computed = when,
                              .to = to_.inlet(s),
                              .prompt = this,
                              .rows = n * tokens,
                              .seconds = from_.kv().step_seconds * n / of_stage,
                              .wanted = [weak = weak_from_this()] { return !weak.expired(); },
                              .arrived =
                                  [weak = weak_from_this(), rows = n * tokens] {
                                    if (const auto self = weak.lock()) self->arrived(rows);
                                  }});
  }
}

void prompt_transfer::arrived(std::uint64_t rows) {
  left_ -= rows;
  if (left_ > 0) return;
  there_ = clock::of(ex_).now();
  sinks_[0]->release();
  changed_.tell();
}

awaitable<error_code> prompt_transfer::all_there() {
  while (left_ > 0) {
    if (lost_) co_return errc::unavailable;
    if (auto told = co_await changed_.async_wait(as_result); !told) co_return told.error();
  }
  co_return error_code();
}

}  // namespace cokv::simulate

// What users hold: an engine, and an answer being made.
#include "arrival_state.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "engine_state.hpp"

namespace cokv {

engine::engine(asio::any_io_executor ex, device where, std::shared_ptr<model> what, std::optional<tokenizer> text,
               engine_options options)
    : state_(std::make_shared<detail::engine_state>(std::move(ex), std::move(where), std::move(what), std::move(text),
                                                    std::move(options))) {}

engine::~engine() { state_->shutdown(); }

result<generation> engine::submit(generation_request request) {
  auto g = state_->submit(std::move(request));
  if (!g) return g.error();
  return generation(std::move(*g));
}

result<std::pair<generation, arrival>> engine::receive(generation_request request,
                                                       std::optional<std::uint32_t> tokens) {
  auto a = state_->receive(std::move(request), tokens);
  if (!a) return a.error();
  generation g((*a)->what);
  return std::pair(std::move(g), arrival(std::move(*a)));
}

void engine::drain(std::shared_ptr<detail::engine_state> state, drain_handler h) {
  auto ex = state->ex;
  detail::run_as_operation(ex, detail::engine_state::drain(std::move(state)), std::move(h));
}

void engine::cancel_all() { state_->cancel_all(); }
void engine::end_lending(error_code why) { state_->lender_lost(why); }
error_code engine::lend(source from, sink to) { return state_->lend(std::move(from), std::move(to)); }
error_code engine::join(stage_links others, std::optional<stage_recovery> how) {
  return state_->join(std::move(others), std::move(how));
}
stage_recovery engine::recover(std::vector<stage_holding> said) { return state_->recover(std::move(said)); }
void engine::give_up_ranks(error_code why) { state_->give_up_ranks(why); }
stage_sizes engine::sizes() const noexcept { return state_->sizes(); }
const asio::any_io_executor& engine::get_executor() const noexcept { return state_->ex; }
const model& engine::running() const noexcept { return *state_->runs; }
std::uint32_t engine::max_sequence() const noexcept { return state_->max_sequence; }
const kv_pool& engine::pool() const noexcept { return state_->pool; }
namespace_id engine::kv_namespace() const noexcept { return state_->ns; }
engine_counters engine::counters() const { return state_->counters(); }
kv_connector_counters engine::kv_counters() const { return state_->connector.counters(); }

generation& generation::operator=(generation&& other) noexcept {
  if (this != &other) {
    cancel();
    state_ = std::move(other.state_);
  }
  return *this;
}
generation::~generation() { cancel(); }

void generation::cancel() {
  if (!state_) return;
  if (auto owner = state_->owner.lock()) owner->cancel(*state_);
}

const generation_report& generation::report() const noexcept { return state_->report; }
asio::any_io_executor generation::get_executor() const { return state_->ex; }

void generation::next(std::shared_ptr<detail::generation_state> state, handler h) { state->next(std::move(h)); }

}  // namespace cokv

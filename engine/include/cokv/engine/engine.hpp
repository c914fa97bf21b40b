// Runs a model for many requests at once: each step schedules, runs and postprocesses, on a coroutine of the context
// that only waits for the device. KV of finished requests is kept for the next one with the same prefix, and comes from
// and goes to the tiers behind the device while the model computes.
//
//     cokv::engine engine(ex, device, model, tokenizer, {.block_tokens = 16});
//     auto answer = engine.submit({.prompt = tokenizer.encode("And it came to pass"), .max_tokens = 32}).value();
//     for (;;) {
//       auto [ec, piece] = co_await answer.async_next(asio::as_tuple(asio::deferred));
//       if (ec) break;                                        // asio::error::eof: the answer is complete
//       send(piece.text);
//     }
//     use(answer.report());
//
// | operation              | cancellation                                      | completes with                       |
// |------------------------|---------------------------------------------------|--------------------------------------|
// | generation::async_next | every kind: takes nothing, the generation goes on | the next token; then eof, or why not |
// | engine::async_drain    | every kind: the wait ends, the draining goes on   | success when nothing is left to do   |
//
// Errors of a generation: operation_aborted (cancelled), device_failed or the device's own (the model could not run),
// closed (the engine is gone). Everything belongs to one context and is used from its thread; nothing here blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cokv/engine/arrival.hpp"
#include "cokv/engine/connector.hpp"
#include "cokv/engine/model.hpp"
#include "cokv/engine/prompt_sink.hpp"
#include "cokv/engine/sampler.hpp"
#include "cokv/engine/sequence_sink.hpp"
#include "cokv/engine/stage_recovery.hpp"
#include "cokv/engine/stage_worker.hpp"
#include "cokv/engine/stop_matcher.hpp"
#include "cokv/engine/tokenizer.hpp"
#include "cokv/kvstream/step_cost.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/kvstream/transfer.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv {

// What of the KV that tiers have is loaded: all of it, or what is expected to come sooner than it is computed
// (load_policy.hpp), learned from what steps and loads take.
enum class kv_policy { always, automatic };

// What takes turns on a device that has not room for all: a sequence, for many steps, while others wait for its blocks; or, of a
// model in parts, what is computed in one step, for that step.
enum class swap_unit { sequence, microbatch };

// Layers whose KV lies in a neighbour's memory, and comes back ahead of computing in each step: of the engine's own memory
// they take two layers' (pager.hpp). lending_bound says how many hide, spread_layers() which.
struct lent_kv {
  std::vector<std::uint32_t> layers;  // ascending, not all
  source from;                        // the neighbour's memory, lent_kv_bytes() of it
  sink to;
  std::uint64_t chunk = std::uint64_t{1} << 20;
};

// Of a model in parts.
struct stage_copies {
  window_table windows;  // those of the links between its workers
  std::uint64_t limit =
      0;  // bytes in which a worker keeps another's KV; what finds no room there is lost with its worker
  std::uint64_t life = 0;  // of this leader, no other's
};

struct engine_options {
  std::uint32_t kv_blocks = 0;  // 0: for two sequences of the greatest length, at most 1 GiB
  std::uint32_t block_tokens = 16;
  std::uint32_t max_batched_tokens = 1024;  // the most tokens of one step
  std::uint32_t max_running = 256;          // the most requests of one step
  std::uint32_t max_requests = 4096;        // waiting and running; more are refused
  std::uint32_t max_sequence = 0;           // prompt and answer together; 0: what the model was made for
  bool prefix_cache = true;                 // keep KV of finished requests on the device while there is room
  // Plan and enqueue the next step while one runs: the device never waits for the host, and a request that ends by a
  // stop string, an end token or cancel() has one token computed for nothing.
  bool async_scheduling = false;
  // Bytes of host memory for KV of more requests than the device has blocks for: those that decode take turns on the
  // device, and nothing is copied while all fit (scheduler.hpp). 0: none; who finds no blocks waits, or is computed again. Of a
  // model in parts: at this worker; the others have as many blocks of theirs. By sequence not together with copies.
  std::uint64_t swap = 0;
  // By microbatch: all KV blocks are in those bytes of the host's memory, and kv_blocks is how many each worker's device has room
  // for; half of them are the most that a step, and so a sequence, has. Requests with a sink are refused (errc::unsupported) then.
  swap_unit swap_by = swap_unit::sequence;
  bool by_microbatch() const noexcept { return swap != 0 && swap_by == swap_unit::microbatch; }
  // Not together with swap, tiers or async_scheduling; requests with a sink or a follower are refused (errc::unsupported).
  std::optional<lent_kv> lent = {};
  // What was lent is gone, and all KV with it: every request has failed with this code, and more are refused with
  // errc::unavailable until lend().
  std::function<void(error_code)> on_lender_lost = {};
  // Of a model that is a part (model_options::part), which join() brings together with the others: steps that are under way at once;
  // 0: as many as it has stages, and with swap_unit::microbatch one more, whose KV comes in meanwhile. Such an engine has no tiers or async_scheduling, and lends nothing; requests with a
  // follower are refused (errc::unsupported), as are more logprobs or biases than there are tokens (errc::invalid_argument).
  std::uint32_t microbatches = 0;
  // Another worker of the model is gone, and all KV with it: as on_lender_lost, until join(). With copies requests wait for that
  // and go on, but for those whose KV is on its way, and new ones, which are refused.
  std::function<void(error_code)> on_ranks_lost = {};
  // Its workers keep copies of each other's KV, but for the leader's (stage_recovery.hpp). Requests with a sink are refused then
  // (errc::unsupported). Of one whose KV comes from elsewhere (receive()) the copy begins with the first step behind that: when a
  // worker is lost while it comes, it fails with the reason, and before that step its prompt is computed here.
  std::optional<stage_copies> copies = {};
  memory_kind kv_memory = memory_kind::device;  // tiers need a kind that the host can reach
  std::vector<kv_tier> tiers = {};              // behind the device, from the fastest to the slowest
  kv_policy policy = kv_policy::always;
  tiered_cache_options connector = {};  // its policy is `policy`'s part
  // Of KV that others may share from now on, and of what was given up, on the device alone: a tier tells its own. In
  // order, behind the changes, those of a moment together.
  change_handler on_kv_change = {};
  // Once, when a step threw, or the device failed and gives no stream any more: all its requests have failed, and more are refused with
  // this code.
  std::function<void(error_code, std::string_view what)> on_broken = {};
};

// Bytes of the KV that such an engine keeps on its device, and of what a neighbour keeps. Throws config_error naming an
// option that is wrong.
std::uint64_t kv_pool_bytes(const engine_options& options, const model_config& config, dtype compute);
std::uint64_t lent_kv_bytes(const std::vector<std::uint32_t>& layers, const engine_options& options,
                            const model_config& config, dtype compute);

struct generation_request {
  std::vector<token_id> prompt;
  std::uint32_t max_tokens = 16;
  sampling_params sampling = {};
  std::optional<std::uint32_t> logprobs = {};  // of each token and of so many likeliest, with it
  std::vector<std::string> stop = {};          // strings that end the answer; they need a tokenizer
  bool ignore_end_tokens = false;
  std::int32_t priority = 0;  // of those that wait the higher is sooner, -8 to 8 (scheduler.hpp)
  std::string salt = {};      // requests of different salts share no KV
  // So many of the prompt's last tokens are an answer begun elsewhere, and not complete: penalties count them, and text of
  // theirs that was held back there comes with the tokens that follow.
  std::uint32_t continues = 0;
  std::shared_ptr<prompt_sink> sink = {};        // told of the prompt's KV as it is computed
  std::shared_ptr<sequence_sink> follower = {};  // told of all KV of it, step by step
};

// One token of an answer. Its text may be empty: held back because it may begin a stop string or is half a character,
// or because it is an end token. All texts together are the answer.
struct generated {
  token_id token = 0;
  std::string text;
  finish_reason reason = finish_reason::none;  // of the last token, why it is the last
  std::optional<token_logprobs> logprobs = {};
};

struct generation_report {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t generated_tokens = 0;
  std::uint32_t cached_tokens = 0;                // prompt tokens that were not computed; at most prompt_tokens - 1
  std::uint32_t cached_device_tokens = 0;         // of those, found on the device
  std::vector<std::uint32_t> cached_tier_tokens;  // of those, by tier, in the order of engine_options::tiers
  std::uint32_t preemptions = 0;
  duration queued{};     // until its first token was computed or loaded
  duration first{};      // TTFT: until its first token came
  duration per_token{};  // TPOT: (last - first) / (generated - 1)
  duration total{};
  finish_reason reason = finish_reason::none;
};

struct engine_counters {
  std::uint64_t submitted = 0, finished = 0, cancelled = 0, failed = 0, refused = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, preemptions = 0;
  std::uint64_t restored_tokens = 0;  // of preempted requests, loaded and not computed again
  std::uint64_t resumed_tokens = 0;   // computed beside a load that came short, and kept
  std::uint64_t steps = 0;
  duration stepping{};                   // the time of all steps but those that begin before their KV is there
  std::size_t waiting = 0, running = 0;  // now
  std::uint64_t prompt_tokens_left = 0;  // of all prompts, to be computed or loaded
  std::size_t blocks = 0, blocks_free = 0, blocks_in_use = 0;
  std::size_t slots = 0;  // of the device, for those that steps compute with; 0: all blocks are there
  step_cost step = {};    // of the last steps
  bool broken = false;    // it takes nothing any more
  std::uint64_t swapped_out_bytes = 0, swapped_in_bytes = 0;  // between the device and the host's memory for swapping
  std::uint64_t swap_failures = 0;                            // copies; their requests stay, or are computed again
  std::size_t parked = 0;                                     // now on the host, to go on when their turn comes
  std::size_t swap_blocks = 0, swap_blocks_free = 0;          // the host's
  std::uint64_t lent_in_bytes = 0, lent_out_bytes = 0;        // between the device and the neighbour that keeps layers
  duration lent_waiting{};               // of steps for lent layers, when there was nothing left to compute
  std::uint64_t lenders_lost = 0;        // so far
  bool lender_lost = false;              // now
  std::uint64_t ranks_lost = 0;          // times that another worker of the model was
  bool joined = true;                    // all of the model's workers are there
  std::string_view sums_by = {};         // of its stage's ranks: rank_group::by(); empty while they have not met
  std::uint64_t recoveries = 0;          // times that requests went on behind a loss
  std::uint64_t recomputed_tokens = 0;   // that had been computed, and were lost with a worker
  std::uint64_t resumed_requests = 0;    // that went on with what was left of them, by such a time
  std::uint64_t restarted_requests = 0;  // of which nothing was left
  std::uint64_t kept_bytes = 0;          // of another worker's KV, here, now
};

namespace detail {
class engine_state;
class generation_state;
}  // namespace detail

// An answer being made. Destroying it cancels what is left of it.
class generation {
 public:
  generation() = default;
  generation(generation&&) noexcept = default;
  generation& operator=(generation&& other) noexcept;
  ~generation();

  // void(error_code, generated). At most max_tokens of them are buffered.
  template <class Token = asio::deferred_t>
  auto async_next(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, generated)>(
        std::forward<Token>(token), get_executor(),
        [state = state_](handler h) mutable { next(std::move(state), std::move(h)); });
  }

  // Ends it: its blocks are free once no step or transfer touches them. What is buffered can still be read.
  void cancel();

  const generation_report& report() const noexcept;
  asio::any_io_executor get_executor() const;
  explicit operator bool() const noexcept { return state_ != nullptr; }

 private:
  using handler = asio::any_completion_handler<void(error_code, generated)>;
  friend class engine;
  explicit generation(std::shared_ptr<detail::generation_state> state) : state_(std::move(state)) {}
  static void next(std::shared_ptr<detail::generation_state> state, handler h);

  std::shared_ptr<detail::generation_state> state_;
};

class engine {
 public:
  // Without a tokenizer answers have no text. Throws config_error naming the option: sizes that don't fit each other,
  // or KV memory that the device hasn't got.
  engine(asio::any_io_executor ex, device where, std::shared_ptr<model> what, std::optional<tokenizer> text,
         engine_options options = {});
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;
  ~engine();  // cancels everything

  // errc::invalid_argument (empty prompt, a token outside the vocabulary, max_tokens 0, sampling that check() refuses or
  // that biases such a token, more continued than there are or an answer that was complete, stop strings without a tokenizer), errc::too_large (the prompt leaves no room for a token), errc::queue_full,
  // errc::closed (draining).
  result<generation> submit(generation_request request);

  // An answer whose prompt's KV, and first token, come from another worker: see arrival.hpp. Of `tokens` leading ones, where
  // it is told, fewer than the prompt has: what is missing is computed here, and the first token with it. Errors as
  // submit()'s; errc::invalid_argument for more tokens than that.
  result<std::pair<generation, arrival>> receive(generation_request request, std::optional<std::uint32_t> tokens = {});

  // void(error_code). From here on nothing new is taken; completes when every answer is complete and every tier has
  // what it was sent.
  template <class Token = asio::deferred_t>
  auto async_drain(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [state = state_](drain_handler h) mutable { drain(std::move(state), std::move(h)); });
  }
  void cancel_all();
  // Another neighbour, or the same one again, keeps the layers of engine_options::lent: behind on_lender_lost. errc::in_use:
  // what was on its way from the one before may still come, ask again; errc::out_of_memory: it has less than that;
  // errc::already_exists: one lends; errc::unsupported: an engine without lent layers.
  error_code lend(source from, sink to);
  // What was lent is known to be gone: as if a step had found out. Nothing, where nobody lends.
  void end_lending(error_code why);

  // The other workers of a model of which this one has the first part: stage_worker.hpp. errc::in_use: what the ones before
  // began is not over, ask again; errc::already_exists: there are some; errc::invalid_argument: links that are not the ones of its place; errc::unsupported: a model that is whole, or not the first part.
  error_code join(stage_links others, std::optional<stage_recovery> how = {});
  // With copies, before join(): from where all of them go on, by what the others, by number, say that they have.
  stage_recovery recover(std::vector<stage_holding> said);
  // With copies: nobody comes in a lost one's place. Requests that wait for it fail.
  void give_up_ranks(error_code why);
  // What stage_workers have to be made with.
  stage_sizes sizes() const noexcept;

  const asio::any_io_executor& get_executor() const noexcept;
  const model& running() const noexcept;
  std::uint32_t max_sequence() const noexcept;
  const kv_pool& pool() const noexcept;
  namespace_id kv_namespace() const noexcept;
  engine_counters counters() const;
  kv_connector_counters kv_counters() const;

 private:
  using drain_handler = asio::any_completion_handler<void(error_code)>;
  static void drain(std::shared_ptr<detail::engine_state> state, drain_handler h);

  std::shared_ptr<detail::engine_state> state_;
};

}  // namespace cokv

// The engine behind its handles: admission, the loop of steps, and the end of requests.
#pragma once

#include <deque>
#include <map>
#include <set>

#include "cokv/engine/arrival.hpp"
#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/trace.hpp"
#include "generation_state.hpp"
#include "lent_layers.hpp"
#include "stage/stage_leader.hpp"
#include "swap_space.hpp"

namespace cokv::detail {

// A run of the model: what it computes, on which stream, and what holds the blocks that it writes.
struct model_step {
  std::shared_ptr<batch> what;
  stream where;
  std::vector<request_id> sampling = {};  // whose tokens what->sampled are
  kv_step kv = {};
  std::vector<sink_part> sinks = {};
};

// A step that is enqueued, and runs or waits for the one before.
struct flying_step {
  const schedule* plan;
  model_step step;
  event over;
  error_code refused = {};
  time_point begun{};
  trace::scoped span;
  std::vector<request_id> gone = {};  // preempted meanwhile: their blocks are others now
};

class engine_state : public std::enable_shared_from_this<engine_state> {
 public:
  engine_state(asio::any_io_executor ex, device where, std::shared_ptr<model> what, std::optional<tokenizer> text,
               engine_options options);
  ~engine_state();

  result<std::shared_ptr<generation_state>> submit(generation_request request);
  result<std::shared_ptr<arrival_state>> receive(generation_request request, std::optional<std::uint32_t> tokens);
  // For an arrival: where it goes, the token behind the prompt, what is there so far, all that is to be there.
  kv_room room(const arrival_state& a);
  error_code arrived_first(arrival_state& a, token_id t, std::optional<token_logprobs> l);
  void keep(arrival_state& a, std::uint32_t tokens);
  void arrived(std::shared_ptr<arrival_state> a);
  void given_up(arrival_state& a, error_code why);
  error_code lend(source from, sink to);
  void lender_lost(error_code why);
  error_code join(stage_links others, std::optional<stage_recovery> how);
  stage_recovery recover(std::vector<stage_holding> said);
  void give_up_ranks(error_code why);
  stage_sizes sizes() const noexcept;
  void fail(generation_state& g, error_code why);
  void cancel(generation_state& g);
  void cancel_all();
  void shutdown();
  // Starts after it was called: it owns the state from the call on.
  static awaitable<error_code> drain(std::shared_ptr<engine_state> self);
  engine_counters counters() const;

  const asio::any_io_executor ex;
  const std::shared_ptr<model> runs;
  engine_options options;  // but for what it lends, which is lent_layers's
  const std::uint32_t max_sequence;

 private:
  using waiter = operation<void(error_code)>;

  result<std::shared_ptr<generation_state>> accept(generation_request request);
  void admit(const std::shared_ptr<generation_state>& g, error_code ec, kv_match found);
  void start();
  const schedule& plan_step();
  void finish(const std::shared_ptr<generation_state>& g, error_code why);
  void broke(std::exception_ptr thrown);
  void wake();
  static awaitable<void> loop(std::shared_ptr<engine_state> self);
  awaitable<void> until_woken(std::uint64_t returned);
  void end_loop();
  flying_step& take_off(const schedule& plan);
  void enqueue(const schedule& plan);
  awaitable<void> enqueue_with_lent(const schedule& plan);
  void lent_settled(error_code ec);
  static awaitable<void> pipeline(std::shared_ptr<engine_state> self);
  void order(const schedule& plan);
  static awaitable<void> lead(std::shared_ptr<engine_state> self, std::shared_ptr<stage_leader> who);
  void ranks_lost(error_code why);
  void lose_all(error_code why);
  void lose_arrivals(error_code why);
  std::vector<ordered_copy> copies_of(const schedule& plan);
  void forget_copy(generation_state& g);
  std::vector<held_sequence> held() const;
  bool shares(const generation_state& g, std::uint32_t token) const;
  void go_on(const stage_recovery& how);
  awaitable<void> take_back();
  bool in_parts() const noexcept { return !runs->part().whole(); }
  static awaitable<void> put_lent(std::shared_ptr<engine_state> self, std::shared_ptr<arrival_state> a);
  void settled(arrival_state& a);
  void publish(arrival_state& a, std::uint32_t tokens);
  void refreshed(request_id id, std::uint32_t first, std::uint32_t end);
  awaitable<void> end_oldest();
  void name_blocks();
  void preempted(request_id id);
  std::shared_ptr<batch> spare_batch();
  bool begins_at_once(const generation_state& g) const;
  void release_unused();
  void begin_swap(const schedule_swap& s);
  void swapped(const schedule_swap& s, error_code ec);
  void share_again(const schedule_swap& s);
  void begin_load(const schedule_load& l);
  void begin_arrival(const schedule_load& l);
  void loaded(const schedule_load& l, std::uint32_t good_blocks);
  void note_loaded(const schedule_load& l, std::uint32_t good_blocks);
  awaitable<bool> recompute(const schedule_load& l, const model_step& behind, std::uint32_t layer, std::uint32_t good);
  static awaitable<void> load_and_compute(std::shared_ptr<engine_state> self, schedule_load l, kv_load load);
  void note_admitted(generation_state& g, std::uint32_t cached_tokens);
  void begin(model_step& step, std::span<const schedule_item> items, bool hold_context);
  void tell_begun(generation_state& g, std::uint32_t there);
  void find_sinks(model_step& step, std::span<const schedule_item> items);
  static void tell_layer(const model_step& step, std::uint32_t layer, const event& computed);
  static void forget_told(generation_state& g);
  void tell_followers(const flying_step& over);
  error_code feed(const model_step& step, std::span<const schedule_item> items);
  error_code enqueue_step(model_step& step);
  result<event> enqueue_layer(model_step& step, std::uint32_t layer);
  error_code enqueue_end(model_step& step);
  void postprocess(const model_step& step);
  void fail_step(const schedule& plan, error_code why);
  void replace_stream();
  void note_change(const block_key& key, bool cached);
  void deliver(const sampled_token& t, const model_step& step);
  void deliver(const sampled_token& t, std::optional<token_logprobs> logprobs);

  clock& time_;
  const mailbox back_{ex};
  device device_;
  stream compute_;
  std::optional<tokenizer> text_;

 public:
  kv_pool pool;
  namespace_id ns;
  block_cache cache;
  kv_connector connector;

 private:
  std::optional<swap_space> swap_;        // none: nobody leaves the device but by preemption
  std::optional<block_cache> host_;       // its blocks
  std::optional<lent_layers> lent_;       // none: all layers are here
  std::shared_ptr<stage_leader> leader_;  // none: the model is whole, or its other workers are not there
  std::shared_ptr<stage_ring> ring_;      // none: no copies are kept
  std::shared_ptr<slot_space> slots_;     // none: all KV is on the device
  std::set<block_index> refreshed_;       // whose KV came from elsewhere: to be told with the next step
  copy_id next_copy_ = 1;
  std::uint64_t epoch_ = 0;  // times that its workers were asked to come together
  scheduler scheduler_;
  static constexpr std::size_t most_opening = 4;
  std::map<request_id, std::shared_ptr<generation_state>> live_;
  std::set<request_id> opening_;                 // their lookups may hold what they found
  std::vector<std::shared_ptr<batch>> batches_;  // their memory is used again
  std::deque<flying_step> flying_;               // oldest first; one, or two where the next is prepared
  time_point last_over_{};
  request_id next_id_ = 1;
  bool recomputing_ = false;
  bool looping_ = false, woken_ = false, draining_ = false;
  error_code broken_;
  operation_list<waiter> wakers_, drains_;
  engine_counters counters_;
  step_fit fit_;
  std::vector<store_change> changes_;  // to be told
};

}  // namespace cokv::detail

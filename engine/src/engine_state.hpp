// The engine behind its handles: admission, the loop of steps, and the end of requests.
#pragma once

#include <map>

#include "cokv/runtime/trace.hpp"
#include "generation_state.hpp"

namespace cokv::detail {

// What a step's last kernel leaves for the loop: a token, or why there is none, for each sequence that samples.
struct step_samples {
  struct one {
    request_id id;
    sampling_params params;
    std::uint64_t position;
    result<token_id> token = error_code();
  };
  std::vector<one> all;
};

class engine_state : public std::enable_shared_from_this<engine_state> {
 public:
  engine_state(asio::any_io_executor ex, device where, std::shared_ptr<model> what, std::optional<tokenizer> text,
               engine_options options);
  ~engine_state();

  result<std::shared_ptr<generation_state>> submit(generation_request request);
  void cancel(generation_state& g);
  void cancel_all();
  void shutdown();
  // Starts after it was called: it owns the state from the call on.
  static awaitable<error_code> drain(std::shared_ptr<engine_state> self);
  engine_counters counters() const;

  const asio::any_io_executor ex;
  const std::shared_ptr<model> runs;
  const engine_options options;
  const std::uint32_t max_sequence;

 private:
  using waiter = operation<void(error_code)>;

  void admit(const std::shared_ptr<generation_state>& g, error_code ec, kv_match found);
  void finish(const std::shared_ptr<generation_state>& g, error_code why);
  void broke(std::exception_ptr thrown);
  void wake();
  static awaitable<void> loop(std::shared_ptr<engine_state> self);
  awaitable<void> run_step(const schedule& plan);
  void begin_load(const schedule_load& l);
  void loaded(const schedule_load& l, std::uint32_t good_blocks);
  void note_admitted(request_id id);
  error_code enqueue(kv_step& kv, const std::shared_ptr<step_samples>& samples);
  void postprocess(const schedule& plan, const step_samples& samples);
  void fail_step(const schedule& plan, error_code why);
  void deliver(generation_state& g, const sampled_token& t);

  clock& time_;
  device device_;
  stream compute_;
  std::optional<tokenizer> text_;

 public:
  kv_pool pool;
  namespace_id ns;
  block_cache cache;
  kv_connector connector;

 private:
  scheduler scheduler_;
  std::map<request_id, std::shared_ptr<generation_state>> live_;
  std::shared_ptr<batch> batch_ = std::make_shared<batch>();
  request_id next_id_ = 1;
  bool looping_ = false, woken_ = false, draining_ = false;
  error_code broken_;
  operation_list<waiter> wakers_, drains_;
  engine_counters counters_;
};

}  // namespace cokv::detail

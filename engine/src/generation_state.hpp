// One answer in the making: what its handle reads, and what the engine keeps about it.
#pragma once

#include <deque>

#include "cokv/engine/detokenizer.hpp"
#include "cokv/engine/engine.hpp"
#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/operation.hpp"

namespace cokv::detail {

inline std::shared_ptr<sampling_state> sampling_of(const generation_request& r) {
  auto out = std::make_shared<sampling_state>();
  out->params = r.sampling;
  out->logprobs = r.logprobs;
  out->first = r.prompt.size() - r.continues;
  if (!r.sampling.look_back()) return out;
  const auto answer = r.prompt.begin() + static_cast<std::ptrdiff_t>(out->first);
  out->prompt.assign(r.prompt.begin(), answer);
  out->answer.assign(answer, r.prompt.end());
  return out;
}

class arrival_state;

class generation_state {
 public:
  generation_state(asio::any_io_executor ex, request_id id, generation_request request)
      : ex(std::move(ex)), id(id), request(std::move(request)), sampling(sampling_of(this->request)) {}

  void deliver(generated piece) {
    if (!waiters_.empty()) return waiters_.front().complete({}, std::move(piece));
    ready_.push_back(std::move(piece));
  }
  void end(error_code why) {
    ended_ = true;
    why_ = why ? why : error_code(asio::error::eof);
    waiters_.complete_all(why_);
  }
  bool ended() const noexcept { return ended_; }

  void next(asio::any_completion_handler<void(error_code, generated)> h) {
    initiate<void(error_code, generated)>(std::move(h), ex, [this](waiter& op) {
      if (!ready_.empty()) {
        auto piece = std::move(ready_.front());
        ready_.pop_front();
        return op.complete({}, std::move(piece));
      }
      if (ended_) return op.fail(why_);
      waiters_.push_back(op);
    });
  }

  const asio::any_io_executor ex;
  const request_id id;
  generation_request request;
  const std::shared_ptr<sampling_state> sampling;
  std::weak_ptr<engine_state> owner;
  generation_report report;

  std::optional<detokenizer> text;
  std::optional<stop_matcher> stop;
  std::optional<kv_load> load;            // on its way
  std::optional<std::uint32_t> told;      // to its sink: so many tokens of the prompt; none before it began
  std::uint32_t followed = 0;             // tokens that its follower was told of
  std::weak_ptr<arrival_state> arriving;  // whoever writes its prompt's KV, where that is somebody else
  kv_match found;
  std::vector<std::uint32_t> loaded;  // tokens, by tier, of the load before it was admitted
  std::uint32_t loaded_from = 0;      // where that began: before it lies what the device had
  bool admitted = false;
  copy_id copy = 0;                        // of its KV, by the workers of a model in parts; 0: none yet
  std::vector<std::uint32_t> copied_ends;  // of its steps since that began, in tokens
  std::uint32_t taken_back = 0;            // of its steps one behind the other, and none was done
  time_point submitted{}, first{}, last{};

 private:
  using waiter = operation<void(error_code, generated)>;
  std::deque<generated> ready_;  // bounded by the request's max_tokens
  operation_list<waiter> waiters_;
  bool ended_ = false;
  error_code why_;
};

}  // namespace cokv::detail

// The writer's end of an answer whose prompt was computed by another worker: where its KV is to lie, and what is there. The
// other end is the generation, which tells the first token as soon as it is known and decodes when all KV is there.
//
//     auto [answer, arrival] = engine.receive({.prompt = tokens, .max_tokens = 32}).value();
//     auto room = co_await arrival.async_room();           // blocks; [room.first, room.tokens) are wanted
//     ...let another worker write room.memory...
//     arrival.first(token);                                // the reader of `answer` has it now
//     arrival.complete();                                  // nobody writes any more: the next step decodes
//
// | operation  | cancellation                                 | buffers                           | completes with            |
// |------------|----------------------------------------------|-----------------------------------|---------------------------|
// | async_room | every kind: the wait ends, its place stays   | held until complete() or fail()   | the room; or why not [1]  |
// | async_over | every kind: the wait ends                    | none                              | success: the answer ended |
//
// [1] the generation's error; eof: the answer was complete with its first token.
//
// Where only leading tokens of the prompt come from elsewhere, the rest and the first token are computed here: there is no
// first() then.
//
// Blocks of a room stay what they are until the arrival is told that it is over, also when the answer ended long before:
// whoever lets others write them first makes sure that they can't any more (revokes their windows). Everything belongs to
// the engine's context and is used from its thread; nothing blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cokv/engine/sampler.hpp"
#include "cokv/engine/scheduler.hpp"
#include "cokv/kvstream/kv_view.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"

namespace cokv {

namespace detail {
class arrival_state;
}

// Where an arriving prompt's KV is to lie. Tokens before `first`, whole blocks, were found here: they are shared with
// others, and nobody may write them.
struct kv_room {
  kv_view memory;
  std::vector<block_index> blocks;      // block i holds tokens [i, i + 1) * block_tokens of the prompt
  std::vector<block_ref> refs;          // of each
  std::uint32_t first = 0, tokens = 0;  // equal: nothing is wanted
  std::shared_ptr<const void> alive;    // what `memory` is a view of
};

class arrival {
 public:
  arrival() = default;
  arrival(arrival&&) noexcept = default;
  arrival& operator=(arrival&& other) noexcept;
  ~arrival();  // fail(operation_aborted)

  // void(error_code, kv_room): once the scheduler has admitted it.
  template <class Token = asio::deferred_t>
  auto async_room(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, kv_room)>(
        std::forward<Token>(token), get_executor(),
        [state = state_](room_handler h) mutable { room(std::move(state), std::move(h)); });
  }
  // void(error_code): once the answer has ended, complete or not: what is still on its way is for nobody.
  template <class Token = asio::deferred_t>
  auto async_over(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [state = state_](over_handler h) mutable { over(std::move(state), std::move(h)); });
  }
  bool over() const noexcept;

  // The token behind the prompt, for the reader of the answer, once; it may end the answer. errc::invalid_argument, and
  // nothing happened: a token outside the vocabulary, a second one, or one that is sampled here.
  error_code first(token_id t, std::optional<token_logprobs> logprobs = {});
  // The leading `tokens` are right, and nobody can write them any more: their whole blocks are shared, and saved to tiers,
  // whatever becomes of the rest. Nothing, where layers are lent: there only whole prompts are shared.
  void keep(std::uint32_t tokens);
  // All of it is there, and nobody can write it any more; behind the room, and first() where that comes from elsewhere.
  void complete();
  // The answer ends with this error, unless it has ended. Nobody can write the room any more.
  void fail(error_code why);

  asio::any_io_executor get_executor() const;
  explicit operator bool() const noexcept { return state_ != nullptr; }  // neither complete nor failed

 private:
  using room_handler = asio::any_completion_handler<void(error_code, kv_room)>;
  using over_handler = asio::any_completion_handler<void(error_code)>;
  friend class engine;
  explicit arrival(std::shared_ptr<detail::arrival_state> state) : state_(std::move(state)) {}
  static void room(std::shared_ptr<detail::arrival_state> state, room_handler h);
  static void over(std::shared_ptr<detail::arrival_state> state, over_handler h);

  std::shared_ptr<detail::arrival_state> state_;
};

}  // namespace cokv

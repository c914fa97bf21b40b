// Another worker, played by hand: it fills a room with the toy's KV and says which token comes behind the prompt.
#pragma once

#include "engine/toy_engine.hpp"

namespace cokv::test {

inline token_id toy_next(const std::vector<token_id>& prompt) { return toy_answer(prompt, 1).front(); }

// All of it at once.
inline awaitable<kv_room> fill_room(engine& e, arrival& a, const std::vector<token_id>& prompt) {
  auto room = co_await a.async_room(asio::deferred);
  fill_toy_kv(room, prompt, room.first, room.tokens);
  co_return room;
}

inline awaitable<void> arrive(engine& e, arrival a, std::vector<token_id> prompt) {
  co_await fill_room(e, a, prompt);
  CHECK(!a.first(toy_next(prompt)));
  a.complete();
}

}  // namespace cokv::test

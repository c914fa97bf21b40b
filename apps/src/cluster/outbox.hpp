// Messages of any length on their way to one peer, one behind the other: whoever has something to say puts it here and goes on.
//
//     outbox notes(ex);
//     group.spawn(notes.run(link));                            // until the link ends
//     notes.put(encode(note));
#pragma once

#include <deque>

#include "cluster/news.hpp"
#include "cokv/kvstream/long_message.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::cluster {

// Outlives run(). Belongs to one context.
class outbox {
 public:
  explicit outbox(asio::any_io_executor ex) : more_(std::move(ex)) {}

  void put(link_message m) {
    waiting_.push_back(std::move(m));
    more_.tell();
  }
  awaitable<error_code> run(peer_link to) {
    for (;;) {
      while (waiting_.empty())
        if (auto waited = co_await more_.async_wait(as_result); !waited) co_return waited.error();
      const auto next = std::move(waiting_.front());
      waiting_.pop_front();
      if (auto ec = co_await send_long(to, next)) co_return ec;
    }
  }

 private:
  std::deque<link_message> waiting_;
  news more_;
};

}  // namespace cokv::cluster

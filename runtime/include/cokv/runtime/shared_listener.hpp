// One place to connect to, served by several contexts: whichever asks first gets the next connection, as a stream of its
// own context. Nobody else can listen there, and who is busy does not ask.
//
//     cokv::shared_listener door(owner, {"127.0.0.1", 8080});           // belongs to the owner's context
//     cokv::listener mine = door.part(co_await asio::this_coro::executor);   // on a shard
//     auto stream = co_await mine.async_accept();
//
// A part's async_accept takes every kind of cancellation and completes when it has been taken back; errc::closed or
// operation_aborted once the door is closed or its context gone. A connection that arrives while the last part that wants
// one gives up is closed.
#pragma once

#include <memory>

#include "cokv/runtime/net.hpp"
#include "cokv/runtime/shards.hpp"

namespace cokv {

class shared_listener {
 public:
  // Binds at once, on the owner's thread; throws std::system_error when it can't. Not for sockets in the file system.
  shared_listener(const asio::any_io_executor& owner, const endpoint& at, int backlog = 256);
  ~shared_listener() { close(); }
  shared_listener(const shared_listener&) = delete;
  shared_listener& operator=(const shared_listener&) = delete;

  endpoint local_endpoint() const;
  void close();  // on the owner's thread: no part gets a connection any more

  // From any thread; used on the thread of `here`'s context. Closing it closes it alone.
  listener part(const asio::any_io_executor& here) const;

  struct state;

 private:
  std::shared_ptr<state> state_;
};

}  // namespace cokv

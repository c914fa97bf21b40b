// A worker that goes to its routers by itself (--join), and says goodbye before it ends.
//
//     joining j(ex, options, "http://10.0.0.2:8001", worker.life());
//     group.spawn(j.run());                       // says that it is there, again and again: a router may be another one;
//                                                 // but not to one that has let it go
//     ... SIGTERM: co_await j.leave();            // then it gets nothing new
#pragma once

#include <deque>
#include <string>

#include "http/client.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

class joining {
 public:
  // Throws config_error naming the flag at fault.
  joining(const asio::any_io_executor& ex, const options& o, std::string own_url, std::string life);

  // Until it is cancelled, or leave() was called.
  awaitable<void> run();
  // Ends in a second or so, whether the routers hear it or not.
  awaitable<void> leave();

 private:
  awaitable<void> tell(http::client& router);

  std::deque<http::client> routers_;
  std::string own_, life_;
  int saying_ = 0;
  bool leaving_ = false;
};

// What others call this process: the host that it listens on unless --advertise says another. Throws config_error where
// neither is one.
std::string own_url(const options& o, const endpoint& listens);

}  // namespace cokv::serve

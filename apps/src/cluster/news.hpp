// That something changed, for the one coroutine that looks at what: any number of changes between two looks are one.
//
//     while (!ready()) co_await changed.async_wait();          // elsewhere: changed.tell();
#pragma once

#include <utility>

#include "cokv/runtime/channel.hpp"

namespace cokv::cluster {

class news {
 public:
  explicit news(asio::any_io_executor ex) : changes_(std::move(ex), 1) {}

  void tell() { (void)changes_.try_send(char()); }
  // void(error_code, char). Every kind of cancellation ends the wait.
  template <class Token = asio::deferred_t>
  auto async_wait(Token&& token = Token()) {
    return changes_.async_receive(std::forward<Token>(token));
  }

 private:
  channel<char> changes_;
};

}  // namespace cokv::cluster

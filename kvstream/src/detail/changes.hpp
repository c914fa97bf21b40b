// Tells coroutines of one context that something has changed: they look again whether it is what they wait for.
//
//     while (!ready()) co_await changed.async_wait();
//     changed.notify();                                     // all that wait now
#pragma once

#include "cokv/runtime/detail/initiate.hpp"

namespace cokv::detail {

class changes {
 public:
  explicit changes(asio::any_io_executor ex) : ex_(std::move(ex)) {}

  asio::any_io_executor get_executor() const { return ex_.get(); }

  // void(error_code). Every kind of cancellation ends the wait.
  template <class Token = asio::deferred_t>
  auto async_wait(Token&& token = Token()) {
    return initiate<void(error_code)>(std::forward<Token>(token), ex_,
                                      [this](beginning<void(error_code)>& begin) { waiting_.push_back(begin.wait()); });
  }
  void notify() { waiting_.complete_all({}); }

 private:
  prepared_executor ex_;
  operation_list<operation<void(error_code)>> waiting_;
};

}  // namespace cokv::detail

// For operations whose implementation is virtual or lives in a .cpp: `start` is called with the handler, erased.
//
//     template <class Token = asio::deferred_t>
//     auto async_match(std::vector<block_key> keys, Token&& token = Token()) {
//       return detail::initiate_erased<void(error_code, std::size_t)>(
//           std::forward<Token>(token), get_executor(), [this, keys = std::move(keys)](match_handler h) mutable {
//             do_match(std::move(keys), std::move(h));     // virtual; match_handler: any_completion_handler<...>
//           });
//     }
//
// do_match then calls initiate<void(error_code, std::size_t)>(h, ex, ...) with the handler as the token, or hands a
// coroutine to `run_as_operation(ex, body(), std::move(h))` of detail/run_as_operation.hpp.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

template <class Signature, class Executor, class Start>
class erased_initiation {
 public:
  using executor_type = Executor;
  erased_initiation(const Executor& ex, Start start) : executor_(ex), start_(std::move(start)) {}
  executor_type get_executor() const noexcept { return executor_; }

  template <class Handler>
  void operator()(Handler&& lent) && {
    std::move(start_)(asio::any_completion_handler<Signature>(std::decay_t<Handler>(std::forward<Handler>(lent))));
  }

  template <class Handler>
  void operator()(Handler&& lent) const&
    requires std::copy_constructible<Start>
  {
    erased_initiation (*this)(std::forward<Handler>(lent));
  }

 private:
  Executor executor_;
  Start start_;
};

template <class Signature, class Token, class Executor, class Start>
auto initiate_erased(Token&& token, const Executor& ex, Start start) {
  return asio::async_initiate<Token, Signature>(erased_initiation<Signature, Executor, Start>(ex, std::move(start)),
                                                token);
}

}  // namespace cokv::detail

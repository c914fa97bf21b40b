// How a handler is called when its operation is over: by post, on its associated executor, with its allocator, both
// executors having outstanding work until then.
//
//     outstanding_work work(ex, handler);                  // while the operation waits
//     complete(ex, std::move(work), std::move(handler), std::tuple(error_code()));
#pragma once

#include <boost/asio/recycling_allocator.hpp>
#include <memory>
#include <tuple>
#include <utility>
#include <variant>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/post_to.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"

namespace cokv::detail {

template <class Handler>
using handler_executor = asio::associated_executor_t<Handler, asio::any_io_executor>;

template <class Handler, class T>
auto handler_allocator(const Handler& handler, std::type_identity<T>) {
  return typename std::allocator_traits<asio::associated_allocator_t<Handler, asio::recycling_allocator<void>>>::
      template rebind_alloc<T>(asio::get_associated_allocator(handler, asio::recycling_allocator<void>()));
}

template <class Handler, class Values>
struct upcall {
  Handler handler;
  Values values;
  void operator()() {
    std::apply([&](auto&&... value) { std::move(handler)(std::move(value)...); }, std::move(values));
  }
};
template <class Handler, class Values>
upcall(Handler, Values) -> upcall<Handler, Values>;

template <class Executor, class Handler, class Values>
void post_upcall(const Executor& ex, Handler handler, Values values) {
  auto alloc = handler_allocator(handler, std::type_identity<void>());
  asio::post(ex, posted{alloc, upcall{std::move(handler), std::move(values)}});
}

// Keeps the executors of an operation and of its handler at work: one count where both are the same, as in every
// coroutine of one context. What is posted is outstanding work by itself.
template <class Handler>
class outstanding_work {
 public:
  outstanding_work(const prepared_executor& ex, const Handler& handler)
      : work_(make(ex, asio::get_associated_executor(handler, ex.get()))) {}

  template <class Values>
  void post(Handler handler, Values values) && {
    if (auto* one = std::get_if<direct>(&work_))
      return post_upcall(one->get_executor(), std::move(handler), std::move(values));
    if (auto* one = std::get_if<same>(&work_))
      return post_upcall(one->get_executor(), std::move(handler), std::move(values));
    auto alloc = handler_allocator(handler, std::type_identity<void>());
    // The I/O executor's work ends here, on its own thread: the handler's may outlive the whole context.
    auto& [to, io] = std::get<both>(work_);
    auto ex = to.get_executor();
    post_to(ex, io.get_executor(), alloc,
            [call = upcall{std::move(handler), std::move(values)}, work = std::move(to)]() mutable { call(); });
  }

 private:
  using direct = asio::executor_work_guard<prepared_executor::direct_executor>;
  using same = asio::executor_work_guard<asio::any_io_executor>;
  using both = std::pair<asio::executor_work_guard<handler_executor<Handler>>, same>;

  static std::variant<direct, same, both> make(const prepared_executor& ex, const handler_executor<Handler>& to) {
    if (ex.is_direct(to)) return direct(ex.direct());
    if (ex.is_same(to)) return same(ex.get());
    return both(to, ex.get());
  }

  std::variant<direct, same, both> work_;
};

// The completion of what never waited.
template <class Handler, class Values>
void post_completion(const prepared_executor& ex, Handler handler, Values values) {
  auto to = asio::get_associated_executor(handler, ex.get());
  if (ex.is_direct(to)) return post_upcall(ex.direct(), std::move(handler), std::move(values));
  if (ex.is_same(to)) return post_upcall(ex.get(), std::move(handler), std::move(values));
  outstanding_work<Handler> work(ex, handler);
  std::move(work).post(std::move(handler), std::move(values));
}

}  // namespace cokv::detail

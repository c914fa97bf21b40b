// An owner's executor with what each of its operations would otherwise look up: the context's registry, and the
// io_context behind the erased executor, if that is all there is to it. Posting to an io_context itself costs a third
// of posting through any_io_executor, which copies itself for every property it is asked for.
//
//     detail::prepared_executor ex_;                       // in an owner, in place of an any_io_executor
//     detail::initiate<void(error_code)>(token, ex_, ...);
//
// Made and used while its context lives; it may be destroyed afterwards.
#pragma once

#include <type_traits>
#include <utility>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/operation.hpp"

namespace cokv::detail {

class prepared_executor {
 public:
  using direct_executor = asio::io_context::executor_type;

  prepared_executor(asio::any_io_executor ex)
      : executor_(std::move(ex)),
        registry_(&operation_registry::of(executor_)),
        direct_(executor_.target<direct_executor>() ? context_of(*executor_.target<direct_executor>()) : nullptr) {}

  prepared_executor() = default;

  const asio::any_io_executor& get() const noexcept { return executor_; }
  operation_registry& registry() const noexcept { return *registry_; }

  // What is posted to `to` may as well be posted to direct().
  template <class Executor>
  bool is_direct(const Executor& to) const noexcept {
    if constexpr (requires { to.template target<direct_executor>(); }) {
      if (!direct_) return false;
      const auto* target = to.template target<direct_executor>();
      return target && *target == direct();
    } else if constexpr (std::is_same_v<Executor, direct_executor>) {
      return direct_ && to == direct();
    } else {
      return false;
    }
  }
  template <class Executor>
  bool is_same(const Executor& to) const noexcept {
    if constexpr (std::is_same_v<Executor, asio::any_io_executor>)
      return to == executor_;
    else
      return false;
  }

  template <class F>
  void post(F&& f) const {
    direct_ ? asio::post(direct(), std::forward<F>(f)) : asio::post(executor_, std::forward<F>(f));
  }

  direct_executor direct() const noexcept { return direct_->get_executor(); }

 private:
  // Null when the executor carries properties of its own, such as blocking.never.
  static asio::io_context* context_of(const direct_executor& ex) noexcept {
    auto& context = asio::query(ex, asio::execution::context);
    return ex == context.get_executor() ? &context : nullptr;
  }

  asio::any_io_executor executor_;
  operation_registry* registry_ = nullptr;
  asio::io_context* direct_ = nullptr;
};

}  // namespace cokv::detail

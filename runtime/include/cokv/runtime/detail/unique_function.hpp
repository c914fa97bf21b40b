// A callable that may be move-only: what std::move_only_function is in C++23.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace cokv::detail {

template <class Signature>
class unique_function;

template <class R, class... A>
class unique_function<R(A...)> {
 public:
  unique_function() = default;

  template <class F>
    requires(!std::is_same_v<std::decay_t<F>, unique_function> && std::is_invocable_r_v<R, std::decay_t<F>&, A...>)
  unique_function(F&& f) : callable_(std::make_unique<model<std::decay_t<F>>>(std::forward<F>(f))) {}

  explicit operator bool() const noexcept { return callable_ != nullptr; }
  R operator()(A... arguments) { return callable_->call(std::forward<A>(arguments)...); }

 private:
  struct concept_ {
    virtual ~concept_() = default;
    virtual R call(A... arguments) = 0;
  };
  template <class F>
  struct model final : concept_ {
    explicit model(const F& f) : f(f) {}
    explicit model(F&& f) : f(std::move(f)) {}
    R call(A... arguments) override {
      if constexpr (std::is_void_v<R>)
        f(std::forward<A>(arguments)...);
      else
        return f(std::forward<A>(arguments)...);
    }
    F f;
  };

  std::unique_ptr<concept_> callable_;
};

}  // namespace cokv::detail

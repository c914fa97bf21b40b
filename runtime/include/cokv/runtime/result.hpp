// as_result: a completion token that turns void(error_code[, T]) into one result<T>, a value that cannot be read past
// its error. It adapts any other token and stands for as_result(deferred) when used alone.
//
//     result<std::size_t> n = co_await stream.async_read_some(buffer, cokv::as_result);
//     if (!n) co_return n.error();
//     use(*n);
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "cokv/runtime/asio.hpp"

namespace cokv {

template <class Token>
class as_result_t {
 public:
  Token token_;

  // as_result(use_awaitable), as_result(callback): adapts that token instead of deferred.
  template <class Other>
  constexpr auto operator()(Other&& other) const {
    return as_result_t<std::decay_t<Other>>{std::forward<Other>(other)};
  }
};

inline constexpr as_result_t<asio::deferred_t> as_result{};

namespace detail {

template <class... Ts>
struct result_of_args {
  using type = result<std::tuple<Ts...>>;
  static type make(error_code ec, Ts... values) {
    if (ec) return ec;
    return std::tuple<Ts...>(std::move(values)...);
  }
};
template <>
struct result_of_args<> {
  using type = result<void>;
  static type make(error_code ec) {
    if (ec) return ec;
    return {};
  }
};
template <class T>
struct result_of_args<T> {
  using type = result<T>;
  static type make(error_code ec, T value) {
    if (ec) return ec;
    return type(boost::system::in_place_value, std::move(value));
  }
};

template <class Signature>
struct result_signature {
  static_assert(!sizeof(Signature*), "as_result adapts signatures void(error_code[, T...])");
};
template <class... Ts>
struct result_signature<void(error_code, Ts...)> {
  using args = result_of_args<std::decay_t<Ts>...>;
  using type = void(typename args::type);
};
template <class... Ts>
struct result_signature<void(const error_code&, Ts...)> : result_signature<void(error_code, Ts...)> {};

// Carries the inner handler's executor, allocator and cancellation slot through the associator below.
template <class Handler, class Args>
struct result_handler {
  Handler handler_;

  template <class... Ts>
  void operator()(const error_code& ec, Ts&&... values) {
    std::move(handler_)(Args::make(ec, std::forward<Ts>(values)...));
  }
};

}  // namespace detail
}  // namespace cokv

namespace boost::asio {

template <class Token, class Signature>
struct async_result<cokv::as_result_t<Token>, Signature> {
  using adapted = typename cokv::detail::result_signature<Signature>::type;
  using args = typename cokv::detail::result_signature<Signature>::args;

  template <class Initiation>
  struct wrapper {
    Initiation initiation_;

    template <class Handler, class... Args>
    void operator()(Handler&& handler, Args&&... values) && {
      std::move(initiation_)(cokv::detail::result_handler<std::decay_t<Handler>, args>{std::forward<Handler>(handler)},
                             std::forward<Args>(values)...);
    }
    template <class Handler, class... Args>
    void operator()(Handler&& handler, Args&&... values) const& {
      auto initiation = initiation_;
      std::move(initiation)(cokv::detail::result_handler<std::decay_t<Handler>, args>{std::forward<Handler>(handler)},
                            std::forward<Args>(values)...);
    }
  };

  template <class Initiation, class RawToken, class... Args>
  static auto initiate(Initiation&& initiation, RawToken&& token, Args&&... values) {
    using inner = std::conditional_t<std::is_const_v<std::remove_reference_t<RawToken>>, const Token, Token>;
    return async_initiate<inner, adapted>(wrapper<std::decay_t<Initiation>>{std::forward<Initiation>(initiation)},
                                          token.token_, std::forward<Args>(values)...);
  }
};

template <template <class, class> class Associator, class Handler, class Args, class Default>
struct associator<Associator, cokv::detail::result_handler<Handler, Args>, Default> : Associator<Handler, Default> {
  static auto get(const cokv::detail::result_handler<Handler, Args>& h) noexcept {
    return Associator<Handler, Default>::get(h.handler_);
  }
  static auto get(const cokv::detail::result_handler<Handler, Args>& h, const Default& fallback) noexcept {
    return Associator<Handler, Default>::get(h.handler_, fallback);
  }
};

}  // namespace boost::asio

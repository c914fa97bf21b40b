// A callable that may be move-only: what std::move_only_function is in C++23. Small ones live inside it, so that what a
// stream is given to do costs no allocation.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace cokv::detail {

template <class Signature>
class unique_function;

template <class R, class... A>
class unique_function<R(A...)> {
  static constexpr std::size_t room = 8 * sizeof(void*);

  template <class F>
  static constexpr bool fits =
      sizeof(F) <= room && alignof(F) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<F>;

 public:
  unique_function() = default;

  template <class F>
    requires(!std::is_same_v<std::decay_t<F>, unique_function> && std::is_invocable_r_v<R, std::decay_t<F>&, A...>)
  unique_function(F&& f) {
    using callable = std::decay_t<F>;
    if constexpr (fits<callable>)
      ::new (static_cast<void*>(room_)) callable(std::forward<F>(f));
    else
      ::new (static_cast<void*>(room_)) callable*(new callable(std::forward<F>(f)));
    how_ = &how_of<callable>;
  }

  unique_function(unique_function&& other) noexcept { take(other); }
  unique_function& operator=(unique_function&& other) noexcept {
    if (this != &other) {
      clear();
      take(other);
    }
    return *this;
  }
  ~unique_function() { clear(); }

  explicit operator bool() const noexcept { return how_ != nullptr; }
  R operator()(A... arguments) { return how_->call(room_, std::forward<A>(arguments)...); }

 private:
  struct how {
    R (*call)(void* at, A&&... arguments);
    void (*move)(void* from, void* to) noexcept;  // leaves nothing at `from`
    void (*destroy)(void* at) noexcept;
  };

  template <class F>
  static F& at(void* p) noexcept {
    if constexpr (fits<F>)
      return *std::launder(static_cast<F*>(p));
    else
      return **std::launder(static_cast<F**>(p));
  }

  template <class F>
  static constexpr how how_of{[](void* p, A&&... arguments) -> R {
                                if constexpr (std::is_void_v<R>)
                                  at<F>(p)(std::forward<A>(arguments)...);
                                else
                                  return at<F>(p)(std::forward<A>(arguments)...);
                              },
                              [](void* from, void* to) noexcept {
                                if constexpr (fits<F>) {
                                  ::new (to) F(std::move(at<F>(from)));
                                  at<F>(from).~F();
                                } else {
                                  ::new (to) F*(&at<F>(from));
                                }
                              },
                              [](void* p) noexcept {
                                if constexpr (fits<F>)
                                  at<F>(p).~F();
                                else
                                  delete &at<F>(p);
                              }};

  void take(unique_function& other) noexcept {
    if (!other.how_) return;
    how_ = std::exchange(other.how_, nullptr);
    how_->move(other.room_, room_);
  }
  void clear() noexcept {
    if (auto* had = std::exchange(how_, nullptr)) had->destroy(room_);
  }

  const how* how_ = nullptr;
  alignas(std::max_align_t) std::byte room_[room];
};

}  // namespace cokv::detail

// A device belongs to its context. A model that is loaded on another thread, while the context runs, makes its calls there.
//
//     const device_calls on(where, options.aside);
//     auto memory = on([&] { return where.allocate(bytes); });        // waits for it; throws what it throws
#pragma once

#include <type_traits>
#include <utility>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/wait_in_task.hpp"

namespace cokv {

class device_calls {
 public:
  device_calls(const device& where, bool aside) : ex_(where.get_executor()), aside_(aside) {}

  template <class F>
  std::invoke_result_t<F&> operator()(F f) const {
    if (!aside_) return f();
    return wait_in_task(ex_, [&f]() -> awaitable<std::invoke_result_t<F&>> { co_return f(); });
  }

 private:
  asio::any_io_executor ex_;
  bool aside_;
};

}  // namespace cokv

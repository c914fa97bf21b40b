// A device that computes for as long as it is told, and takes no processor time for it: what a GPU is to its host.
#pragma once

#include <sys/prctl.h>

#include <chrono>
#include <memory>
#include <thread>

#include "cokv/runtime/device.hpp"

namespace cokv::bench {

using steady = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

class modelled_device {
 public:
  explicit modelled_device(const asio::any_io_executor& ex)
      : device_(open_device(ex, "cpu", {.threads = 1}).value()), kernels_(device_.make_stream({"modelled"}).value()) {}

  // Begins when what was launched before has ended, at the earliest now; the event is its end.
  event launch(seconds takes) {
    (void)kernels_.launch("modelled", [last = ends_, asked = steady::now(), takes] {
      ::prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
      *last = std::max(*last, asked) + std::chrono::duration_cast<steady::duration>(takes);
      std::this_thread::sleep_until(*last);
    });
    return kernels_.record();
  }

 private:
  device device_;
  stream kernels_;
  std::shared_ptr<steady::time_point> ends_ = std::make_shared<steady::time_point>();
};

}  // namespace cokv::bench

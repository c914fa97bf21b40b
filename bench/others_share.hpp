// How much of the machine others took while something ran: what makes two timings of a loaded machine incomparable.
#pragma once

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "throughput.hpp"

namespace cokv::bench {

class others_share {
 public:
  // Of all processors' time since it was made, 0 to 1: other processes, the kernel's own threads, and other guests of
  // the host.
  double get() const {
    const auto wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const auto others = (busy_seconds() - busy_) - (cpu_seconds() - own_);
    return others / (wall * std::thread::hardware_concurrency());
  }

 private:
  static double busy_seconds() {
    std::ifstream stat("/proc/stat");
    std::string word;
    double user = 0, nice = 0, system = 0, idle = 0, io = 0, hard = 0, soft = 0, steal = 0;
    stat >> word >> user >> nice >> system >> idle >> io >> hard >> soft >> steal;
    return (user + nice + system + hard + soft + steal) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double busy_ = busy_seconds(), own_ = cpu_seconds();
};

}  // namespace cokv::bench

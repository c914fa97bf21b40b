// Bytes moved, timed: by the wall and by the processor time of all threads, of both processes where there are two.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <vector>

namespace cokv::bench {

struct throughput {
  double gb_s = 0, cpu_s_gb = 0;
};

// Processes whose processor time counts: this one, and who does the other half of the work.
inline std::vector<clockid_t>& counted() {
  static std::vector<clockid_t> clocks{CLOCK_PROCESS_CPUTIME_ID};
  return clocks;
}
inline void count_process(pid_t other) {
  clockid_t clock{};
  if (clock_getcpuclockid(other, &clock) == 0) counted().push_back(clock);
}

inline double cpu_seconds() {
  double all = 0;
  for (auto clock : counted()) {
    timespec t{};
    clock_gettime(clock, &t);
    all += static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  return all;
}

// From where it is made.
class stopwatch {
 public:
  throughput over(std::size_t bytes) const {
    const auto gb = static_cast<double>(bytes) / 1e9;
    return {gb / std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(),
            (cpu_seconds() - cpu_) / gb};
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double cpu_ = cpu_seconds();
};

template <class F>
throughput timed(std::size_t bytes, F f) {
  const stopwatch watch;
  f();
  return watch.over(bytes);
}

inline throughput median(std::vector<throughput> all) {
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.gb_s < b.gb_s; });
  return all[all.size() / 2];
}

}  // namespace cokv::bench

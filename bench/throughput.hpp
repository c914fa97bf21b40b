// Bytes moved, timed: by the wall and by the processor time of all threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <vector>

namespace cokv::bench {

struct throughput {
  double gb_s = 0, cpu_s_gb = 0;
};

inline double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
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

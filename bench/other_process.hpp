// The other half of a bench, in a process of its own: it tells a port and serves until this one is done with it. It has
// the last core to itself, this process has the others: on a machine of two cores Linux wakes a busy pair on one of them
// and leaves them there, one after the other, while the other core idles.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

#include "throughput.hpp"

namespace cokv::bench {

class other_process {
 public:
  // `serve(tell)` runs there; tell(port) once. Made before this process has threads.
  template <class F>
  explicit other_process(F serve) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    id_ = ::fork();
    if (id_ < 0) throw std::runtime_error("no other process");
    keep_apart(id_ == 0);
    if (id_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      serve([to = ends[1]](std::uint16_t port) {
        if (::write(to, &port, sizeof port) != sizeof port) ::_exit(1);
      });
      ::_exit(0);
    }
    ::close(ends[1]);
    const bool told = ::read(ends[0], &port_, sizeof port_) == sizeof port_;
    ::close(ends[0]);
    if (!told) throw std::runtime_error("the other process failed");
  }
  ~other_process() {
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }
  other_process(const other_process&) = delete;
  other_process& operator=(const other_process&) = delete;

  std::uint16_t port() const { return port_; }
  pid_t id() const { return id_; }

 private:
  static void keep_apart(bool other) {
    static const cpu_set_t all = [] {
      cpu_set_t mask;
      if (::sched_getaffinity(0, sizeof mask, &mask) != 0) CPU_ZERO(&mask);
      return mask;
    }();
    if (CPU_COUNT(&all) < 2) return;
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &all)) --last;
    cpu_set_t mine = all;
    CPU_CLR(last, &mine);
    if (other) {
      CPU_ZERO(&mine);
      CPU_SET(last, &mine);
    }
    ::sched_setaffinity(0, sizeof mine, &mine);
  }

  pid_t id_ = -1;
  std::uint16_t port_ = 0;
};

}  // namespace cokv::bench

// The other half of a bench, in a process of its own: it tells a port and serves until this one is done with it.
#pragma once

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
  pid_t id_ = -1;
  std::uint16_t port_ = 0;
};

}  // namespace cokv::bench

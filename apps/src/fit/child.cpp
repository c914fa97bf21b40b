#include "fit/child.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string_view>

#include "cokv/runtime/error.hpp"

namespace cokv::fit {

bool send_all(int link, const void* bytes, std::size_t size) {
  return ::send(link, bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool receive_all(int link, void* bytes, std::size_t size) {
  return ::recv(link, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

child::child(const std::function<void(int link)>& run) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw config_error("--workers: no socket for one");
  link_ = ends[0];
  process_ = ::fork();
  if (process_ == 0) {
    ::close(ends[0]);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // others' copies of its link keep it open
    try {
      run(ends[1]);
    } catch (const std::exception& e) {
      const std::string_view why = e.what();
      (void)send_all(ends[1], why.data(), why.size());
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  if (process_ < 0) {
    ::close(link_);
    throw config_error("--workers: no process for one");
  }
}

child::~child() {
  ::kill(process_, SIGKILL);
  ::close(link_);
  ::waitpid(process_, nullptr, 0);
}

}  // namespace cokv::fit

// A broken rule ends the process: in a child of its own, so that a test can look at its last words. The child has this
// thread alone: what it does must not need others that run here.
//
//     CHECK(last_words([] { stream().record(); }).find("make_stream") != std::string::npos);
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace cokv::test {

// What it wrote to stderr before it aborted; "(it lived)" if it did not.
template <class F>
std::string last_words(F f) {
  int ends[2];
  if (::pipe(ends) != 0) return "(no pipe)";
  const pid_t child = ::fork();
  if (child < 0) return "(no child)";
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::dup2(ends[1], STDERR_FILENO);
    f();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  char piece[512];
  for (ssize_t n; (n = ::read(ends[0], piece, sizeof piece)) > 0;) said.append(piece, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? said : "(it lived) " + said;
}

}  // namespace cokv::test

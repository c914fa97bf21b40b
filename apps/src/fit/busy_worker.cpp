#include "fit/busy_worker.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "fit/measure.hpp"

namespace cokv::fit {
namespace {

bool something_to_read(int fd, int wait) {
  pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&p, 1, wait) > 0;
}

// What it was told, and 'q' when nobody tells it anything any more.
char told(int from) {
  char c = 'q';
  return ::read(from, &c, 1) == 1 ? c : 'q';
}

// In the other process. Each order is answered by a byte once it is followed.
awaitable<void> follow(const options& o, int from, int to) {
  auto it = subject::open(co_await asio::this_coro::executor, o);
  const auto say = [to] { return ::write(to, "", 1) == 1; };
  bool alive = say();
  const auto more = [&, said = false]() mutable {
    if (!std::exchange(said, true)) alive = say();
    return alive && !something_to_read(from, 0);
  };
  while (alive) {
    switch (told(from)) {
      case 'p':
        co_await it.steps.repeat_prompt(it.beside_prompt, more);
        break;
      case 'a':
        co_await it.steps.repeat_answers(it.beside_answers, it.beside_context, more);
        break;
      case 'i':
        alive = say();
        break;
      default:
        alive = false;
    }
  }
}

[[noreturn]] void run(const options& o, int from, int to) {
  try {
    asio::io_context context(1);
    asio::co_spawn(context, follow(o, from, to), asio::detached);
    context.run();
  } catch (const std::exception&) {  // the other side sees that it has ended
  }
  ::_exit(0);
}

}  // namespace

busy_worker::busy_worker(const options& o) {
  int orders[2], answers[2];
  if (::pipe2(orders, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) throw std::runtime_error("fit: no pipe");
  process_ = ::fork();
  if (process_ < 0) throw std::runtime_error("fit: no process for a worker");
  if (process_ == 0) {
    ::close(orders[1]);
    ::close(answers[0]);
    run(o, orders[0], answers[1]);
  }
  ::close(orders[0]);
  ::close(answers[1]);
  to_ = orders[1];
  from_ = answers[0];
}

// Those that were made behind it have a copy of this end of its orders: closing it says nothing.
busy_worker::~busy_worker() {
  (void)!::write(to_, "q", 1);
  ::close(to_);
  ::close(from_);
  ::waitpid(process_, nullptr, 0);
}

void busy_worker::tell(char what) {
  if (::write(to_, &what, 1) != 1) throw std::runtime_error("fit: a worker has ended");
  hear();
}

void busy_worker::hear() {
  char c = 0;
  if (::read(from_, &c, 1) != 1) throw std::runtime_error("fit: a worker has ended");
}

}  // namespace cokv::fit

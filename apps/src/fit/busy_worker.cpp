#include "fit/busy_worker.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <sstream>
#include <string>

#include "cokv/runtime/error.hpp"
#include "fit/measure.hpp"

namespace cokv::fit {
namespace {

// Behind what it did as it was told.
constexpr char done = '\0';

bool say(int link, std::string_view what) { return send_all(link, what.data(), what.size()); }

bool something_to_read(int link, int within_ms = 0) {
  pollfd p{.fd = link, .events = POLLIN, .revents = 0};
  return ::poll(&p, 1, within_ms) > 0;
}

// Behind the order: how many bytes there are of a stage and the doors of all, a line each.
std::optional<stage_place> place_from(int link) {
  std::uint32_t bytes = 0;
  if (!receive_all(link, &bytes, sizeof bytes)) return std::nullopt;
  std::string text(bytes, 0);
  if (!receive_all(link, text.data(), bytes)) return std::nullopt;
  std::istringstream lines(text);
  stage_place at;
  lines >> at.stage;
  for (std::string url; lines >> url;) at.urls.push_back(url);
  return at;
}

// In the other process. Each order is answered once it is followed; it ends with the link.
awaitable<void> follow(const options& o, int link) {
  auto it = subject::open(co_await asio::this_coro::executor, o);
  bool alive = say(link, {&done, 1});
  const auto more = [&, said = false]() mutable {
    if (!std::exchange(said, true)) alive = say(link, {&done, 1});
    return alive && !something_to_read(link);
  };
  for (char order = 0; alive && ::read(link, &order, 1) == 1;) {
    if (order == 'p') co_await it.steps.repeat_prompt(it.beside_prompt, more);
    if (order == 'a') co_await it.steps.repeat_answers(it.beside_answers, it.beside_context, more);
    if (order == 'i') alive = say(link, {&done, 1});
    if (order == 's') {
      const auto at = place_from(link);
      alive = alive && at;
      if (at) co_await be_stage(o, it.where, *at, [&] { alive = say(link, {&done, 1}); });
      alive = alive && say(link, {&done, 1});
    }
  }
}

void run(const options& o, int link) {
  asio::io_context context(1);
  std::exception_ptr failed;
  asio::co_spawn(context, follow(o, link), [&](std::exception_ptr e) { failed = e; });
  context.run();
  if (failed) std::rethrow_exception(failed);
}

}  // namespace

busy_worker::busy_worker(const options& o) : other_([&o](int link) { run(o, link); }) {}

void busy_worker::tell(char what) {
  (void)say(other_.link(), {&what, 1});
  hear();
}

void busy_worker::enter(const stage_place& at) {
  std::string text = std::to_string(at.stage) + '\n';
  for (const auto& url : at.urls) text += url + '\n';
  const auto bytes = static_cast<std::uint32_t>(text.size());
  (void)say(other_.link(), "s" + std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + text);
}

void busy_worker::check() {
  constexpr int leave_ms = 500;  // its links end first
  if (something_to_read(other_.link(), leave_ms)) hear();
}

void busy_worker::hear() {
  std::string text(512, 0);
  const auto n = ::recv(other_.link(), text.data(), 1, 0);
  if (n == 1 && text[0] == done) return;
  const auto rest = n == 1 ? ::recv(other_.link(), text.data() + 1, text.size() - 1, 0) : 0;
  text.resize(n == 1 ? static_cast<std::size_t>(1 + std::max<ssize_t>(rest, 0)) : 0);
  throw config_error(text.empty() ? "--workers: one of them has ended" : text);
}

}  // namespace cokv::fit

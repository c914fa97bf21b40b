// Two processes and real sockets: one is killed or stopped in the middle of transfers.
#include <filesystem>

#include "cokv/runtime/memory_handle.hpp"
#include "kvstream/link/other_process.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t window_bytes = 1 << 20;

std::string url_of_a_file(const char* what) {
  static int n = 0;
  const auto name = std::string("cokv-") + what + "-" + std::to_string(::getpid()) + "-" + std::to_string(n++);
  return "shm://" + (std::filesystem::temp_directory_path() / name).string();
}

class over_tcp : public other_process {
 public:
  over_tcp()
      : other_process([](int to) {
          asio::io_context context(1);
          window_table windows(context.get_executor());
          offer("tcp://127.0.0.1:0", blank(window_bytes), windows, context, to);
        }) {}
  std::string url() const { return "tcp://127.0.0.1:" + std::to_string(port()); }
};

class over_shm : public other_process {
 public:
  explicit over_shm(std::string at = url_of_a_file("process"))
      : other_process([at](int to) {
          asio::io_context context(1);
          window_table windows(context.get_executor());
          offer(at, allocate_shared(window_bytes).value(), windows, context, to);
        }),
        url_(std::move(at)) {}
  const std::string& url() const { return url_; }

 private:
  std::string url_;
};

}  // namespace

TEST_CASE(
    "link processes: a peer that is killed, or stands still for too long, is an error to what it breaks, and gone") {
  for (int how : {SIGKILL, SIGSTOP})
    for (bool shares : {false, true}) {
      CAPTURE(how);
      CAPTURE(shares);
      asio::io_context context(1);
      bool ended = false;
      asio::co_spawn(context, shares ? outlive<over_shm>(how, 20) : outlive<over_tcp>(how, 20),
                     [&](std::exception_ptr e) {
                       if (e) std::rethrow_exception(e);
                       ended = true;
                     });
      context.run_for(2min);
      CHECK(ended);
    }
}

// The child writes into what its parent offers, until it is stopped; its memory is not given back before it is dead.
TEST_CASE("link processes: what a stopped process may still write into stays in quarantine until it is dead") {
  const auto url = url_of_a_file("writer");
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    window_ref to;
    if (::read(ends[0], &to, sizeof to) != sizeof to) ::_exit(1);
    asio::io_context context(1);
    asio::co_spawn(
        context,
        [&]() -> awaitable<void> {
          window_table own(context.get_executor());
          auto link = co_await async_connect(own, url, {.silence = 1s});
          auto data = patterned(window_bytes);
          for (;;) co_await async_flush(data, link.to(to), 0);
        },
        asio::detached);
    context.run();
    ::_exit(0);
  }
  asio::io_context context(1);
  bool ended = false;
  auto body = [&]() -> awaitable<void> {
    const auto ex = context.get_executor();
    window_table windows(ex);
    auto memory = allocate_shared(window_bytes).value();
    auto w = windows.expose({memory}, window_access::put).value();
    auto door = link_listener::listen(windows, url, {.silence = 1s}).value();
    const auto ref = w.ref();
    CHECK(::write(ends[1], &ref, sizeof ref) == sizeof ref);
    auto link = co_await door.async_accept();
    while (w.bytes_put() < 20 * window_bytes) co_await clock::of(ex).async_wait_for(1ms);
    ::kill(child, SIGSTOP);
    CHECK((co_await link.async_closed(as_result)).has_value());
    CHECK(link.error() == errc::unavailable);
    bool revoked = false;
    w.async_revoke([&](error_code) { revoked = true; });
    co_await clock::of(ex).async_wait_for(200ms);
    CHECK(!revoked);
    CHECK(memory.use_count() > 1);
    ::kill(child, SIGKILL);
    while (!revoked) co_await clock::of(ex).async_wait_for(1ms);
    CHECK(memory.use_count() == 1);
    ended = true;
  };
  asio::co_spawn(context, body(), [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  });
  context.run_for(1min);
  CHECK(ended);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

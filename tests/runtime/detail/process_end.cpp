// Is a process still on its way out? By what Linux says of one, and of a child that is killed.
#include "cokv/runtime/detail/process_end.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/net.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::detail;
using test::run_real;

namespace {

std::string stat_line(std::string_view name, char state, std::uint32_t flags, int threads) {
  return "4711 (" + std::string(name) + ") " + state + " 1 4711 4711 0 -1 " + std::to_string(flags) +
         " 99 0 0 0 0 0 0 0 20 0 " + std::to_string(threads) + " 0 160845 3133440 384";
}

bool is_dead(::pid_t child) {
  siginfo_t about{};
  return ::waitid(P_PID, static_cast<id_t>(child), &about, WEXITED | WNOHANG | WNOWAIT) == 0 && about.si_pid == child;
}

// Holds much memory by a descriptor, which takes the system a while to give back, and connects to `at`.
[[noreturn]] void hold_and_connect(const std::string& at) {
  constexpr std::size_t much = 512 << 20;
  const int memory = ::memfd_create("much", 0);
  if (memory < 0 || ::ftruncate(memory, much) != 0) ::_exit(1);
  auto* all = static_cast<char*>(::mmap(nullptr, much, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
  for (std::size_t i = 0; i < much; i += 4096) all[i] = 1;
  ::munmap(all, much);
  asio::io_context context(1);
  auto stay = [](asio::any_io_executor ex, std::string path) -> awaitable<void> {
    auto stream = co_await network::of(ex).async_connect(endpoint::local(path));
    co_await clock::of(ex).async_wait_for(std::chrono::hours(1));
  };
  asio::co_spawn(context, stay(context.get_executor(), at), asio::detached);
  context.run();
  ::_exit(1);
}

}  // namespace

TEST_CASE("process_end: what Linux says of a process") {
  CHECK(state_in(stat_line("cokv", 'S', 4194304, 7)) == process_state::lives);
  CHECK(state_in(stat_line("cokv", 'R', 4194304 | 4, 7)) == process_state::ends);
  CHECK(state_in(stat_line("a) Z 1 (b", 'D', 4, 1)) == process_state::ends);
  CHECK(state_in(stat_line("cokv", 'Z', 4 | 8, 3)) == process_state::ends);  // others of its threads are there
  CHECK(state_in(stat_line("cokv", 'Z', 4 | 8, 1)) == process_state::over);
  CHECK(state_in(stat_line("cokv", 'X', 4 | 8, 0)) == process_state::over);
  for (auto* text : {"", "4711", "4711 (cokv)", "4711 (cokv) ", "4711 (cokv) Z", "4711 (cokv) Z 1 2 3",
                     "4711 (cokv) Z 1 1 1 0 -1 x"})
    CHECK(state_in(text) == process_state::lives);
  CHECK(state_of(::getpid()) == process_state::lives);
}

TEST_CASE("process_end: of a child that is killed, when nothing of it is left; of one that lives at once") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    const auto at = std::filesystem::temp_directory_path() / ("cokv-test-end-" + std::to_string(::getpid()));
    auto door = network::of(ex).listen(endpoint::local(at.string())).value();
    const auto child = ::fork();
    if (child == 0) hold_and_connect(at.string());
    auto stream = co_await door.async_accept();
    REQUIRE(stream.peer_process() == child);
    co_await async_process_end(ex, child);
    CHECK(state_of(child) == process_state::lives);
    ::kill(child, SIGKILL);
    std::byte some;
    const auto [ec, n] = co_await stream.async_read_some(asio::buffer(&some, 1), asio::as_tuple(asio::deferred));
    CHECK(ec == asio::error::eof);
    co_await async_process_end(ex, child);
    CHECK(is_dead(child));
    ::waitpid(child, nullptr, 0);
    CHECK(state_of(child) == process_state::over);
    co_await async_process_end(ex, child);
  });
}

#include "kvstream/redis/real_redis.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::test {
namespace {

// One that is free now. Nobody else is given it while the kernel has others.
std::uint16_t free_port() {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  const bool bound = s >= 0 && ::bind(s, reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                     ::getsockname(s, reinterpret_cast<sockaddr*>(&at), &size) == 0;
  ::close(s);
  if (!bound) throw std::runtime_error("no port is free");
  return ntohs(at.sin_port);
}

awaitable<void> a_moment(const asio::any_io_executor& ex) {
  co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(10), asio::deferred);
}

}  // namespace

bool have_redis() {
  if (std::string_view(COKV_REDIS_SERVER).starts_with('/')) return true;
  MESSAGE("skipped: there is no redis-server");
  return false;
}

redis_process::redis_process(bool cluster, std::string password) : password_(std::move(password)) {
  folder_ = (std::filesystem::temp_directory_path() / "cokv-redis-XXXXXX").string();
  if (!::mkdtemp(folder_.data())) throw std::runtime_error("no temporary folder");
  port_ = free_port();
  do bus_ = free_port();
  while (bus_ == port_);
  std::vector<std::string> words{
      COKV_REDIS_SERVER, "--port", std::to_string(port_), "--bind", "127.0.0.1", "--dir", folder_,
      "--save",          "",       "--appendonly",        "no"};
  if (cluster)
    words.insert(words.end(), {"--cluster-enabled", "yes", "--cluster-port", std::to_string(bus_),
                               "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "1000"});
  if (!password_.empty()) words.insert(words.end(), {"--requirepass", password_});
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, (folder_ + "/log").c_str(), O_WRONLY | O_CREAT, 0600);
  const int failed = ::posix_spawn(&pid_, COKV_REDIS_SERVER, &files, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed) throw std::runtime_error("redis-server does not start");
}

void redis_process::kill() {
  if (const int pid = std::exchange(pid_, 0)) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
}

awaitable<detail::redis_value> redis_process::ask(std::vector<std::string> command) {
  const auto ex = co_await asio::this_coro::executor;
  for (int tries = 0; tries < 3000; ++tries) {  // it may still be starting
    auto pipe = co_await detail::redis_pipe::connect(ex, at(), {.password = password_});
    if (!pipe) {
      co_await a_moment(ex);
      continue;
    }
    auto reply = co_await (*pipe)->execute(detail::redis_command(command.begin(), command.end()), 0);
    (*pipe)->close(errc::closed);
    if (reply && !reply->text.starts_with("LOADING")) co_return std::move(*reply);
    co_await a_moment(ex);
  }
  FAIL_CHECK("redis-server does not answer to ", command.front());
  co_return detail::redis_value();
}

redis_processes::redis_processes() {
  for (int i = 0; i < 3; ++i) nodes.push_back(std::make_unique<redis_process>(true));
}

awaitable<void> redis_processes::join() {
  const auto ex = co_await asio::this_coro::executor;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    int first = 0, last = 16384;
    for (int s = 0; s < 16384; ++s) {
      if (owner_of(static_cast<std::uint16_t>(s)) < i) first = s + 1;
      if (owner_of(static_cast<std::uint16_t>(s)) > i) last = std::min(last, s);
    }
    CHECK(
        (co_await nodes[i]->ask({"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(last - 1)})).text ==
        "OK");
    if (i != 0)
      CHECK((co_await nodes[i]->ask({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes[0]->at().port),
                                     std::to_string(nodes[0]->bus())}))
                .text == "OK");
  }
  for (auto& n : nodes)
    for (int tries = 0; tries < 3000; ++tries) {
      const auto info = (co_await n->ask({"CLUSTER", "INFO"})).text;
      if (info.find("cluster_state:ok") != info.npos && info.find("cluster_slots_ok:16384") != info.npos &&
          info.find("cluster_known_nodes:3") != info.npos)
        break;
      CHECK(tries != 2999);
      co_await a_moment(ex);
    }
}

awaitable<void> redis_processes::migrate(std::uint16_t slot, std::size_t from, std::size_t to,
                                         std::function<awaitable<void>()> between) {
  const auto number = std::to_string(slot);
  const auto source = (co_await nodes[from]->ask({"CLUSTER", "MYID"})).text;
  const auto target = (co_await nodes[to]->ask({"CLUSTER", "MYID"})).text;
  CHECK((co_await nodes[to]->ask({"CLUSTER", "SETSLOT", number, "IMPORTING", source})).text == "OK");
  CHECK((co_await nodes[from]->ask({"CLUSTER", "SETSLOT", number, "MIGRATING", target})).text == "OK");
  for (;;) {
    const auto keys = co_await nodes[from]->ask({"CLUSTER", "GETKEYSINSLOT", number, "1"});
    if (keys.elements.empty()) break;
    CHECK((co_await nodes[from]->ask(
               {"MIGRATE", "127.0.0.1", std::to_string(nodes[to]->at().port), keys.elements.front().text, "0", "5000"}))
              .text == "OK");
    co_await between();
  }
  for (const auto i : {to, from})
    CHECK((co_await nodes[i]->ask({"CLUSTER", "SETSLOT", number, "NODE", target})).text == "OK");
  co_await between();
}

}  // namespace cokv::test

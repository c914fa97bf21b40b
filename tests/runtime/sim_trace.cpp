#include "support/sim_trace.hpp"

#include <unistd.h>

#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/file.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/sim_fault_plan.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "cokv/runtime/trace.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace std::chrono_literals;

namespace {

struct folder {
  std::filesystem::path at = std::filesystem::temp_directory_path() / ("cokv_sim_trace_" + std::to_string(::getpid()));
  folder() { std::filesystem::create_directories(at); }
  ~folder() {
    const char* own = std::getenv("COKV_TRACE");
    test::trace_simulations(own ? own : "");
    std::filesystem::remove_all(at);
  }
};

// The tracks of a trace, and the names of what is on them.
std::set<std::string> contents(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  std::set<std::string> found;
  const auto document = boost::json::parse(text.str());
  for (auto& e : document.at("traceEvents").as_array()) {
    const auto& event = e.as_object();
    found.insert(std::string(event.at("name").as_string()));
    if (auto* args = event.if_contains("args"); args && args->is_object())
      if (auto* name = args->as_object().if_contains("name"))
        if (name->is_string()) found.insert(std::string(name->as_string()));
  }
  return found;
}

// Talks to itself over the network, writes a file, copies on a device; and is never done.
awaitable<void> busy(asio::any_io_executor ex) {
  auto device = open_device(ex, "sim:h100").value();
  auto stream = device.make_stream({.name = "copies"}).value();
  auto block = device.allocate(1000).value();
  stream.copy(block, buffer::host(1000), "load");
  co_await stream.async_drain();
  auto f = co_await file_system::of(ex).async_open("f", open_mode::create);
  co_await f.async_write_at(0, asio::buffer("abc", 3));
  co_await f.async_sync();
  auto door = network::of(ex).listen({"", 7}).value();
  auto out = co_await network::of(ex).async_connect({"", 7});
  auto in = co_await door.async_accept();
  co_await asio::async_write(out, asio::buffer("hello", 5), asio::deferred);
  char text[5];
  co_await asio::async_read(in, asio::buffer(text), asio::deferred);
  co_await clock::of(ex).async_wait_for(duration::max());
}

}  // namespace

TEST_CASE("a simulated run that ends in a deadlock leaves a trace of hosts, network, disks, streams and faults") {
  if (!trace::compiled) return;
  folder f;
  test::trace_simulations((f.at / "run.json").string());
  {
    sim_context context(4711);
    sim::node server(context, "server", [](auto ex) { asio::co_spawn(ex, busy(ex), asio::detached); });
    sim::net::of(context).faults.short_transfer = 0;
    sim::fault_plan({{sim::fault_kind::pause, 1s, 1s, "server", ""}, {sim::fault_kind::kill, 3s, 1s, "server", ""}})
        .apply(context);
    CHECK(context.run() == sim_context::outcome::suspended);
  }
  { sim_context second(1); }
  const auto found = contents(f.at / "run.json");
  for (auto* name : {"run", "seed 4711", "node server", "up", "paused", "faults", "kill server", "pause server",
                     "disk server", "write", "sync", "server: copies", "load", "5 bytes"}) {
    CAPTURE(name);
    CHECK(found.contains(name));
  }
  CHECK(std::any_of(found.begin(), found.end(), [](auto& n) { return n.starts_with("net server:"); }));
  CHECK(std::filesystem::exists(f.at / "run.2.json"));
}

TEST_CASE("recording doesn't change what happens") {
  auto hash = [] {
    sim_context context(9);
    asio::co_spawn(context.get_executor(), busy(context.get_executor()), asio::detached);
    context.run();
    return context.trace_hash();
  };
  folder f;
  test::trace_simulations("");
  const auto plain = hash();
  test::trace_simulations((f.at / "run.json").string());
  CHECK(hash() == plain);
}

TEST_CASE("a trace that can't be written is refused at once") {
  folder f;
  CHECK_THROWS_AS(test::trace_simulations((f.at / "no" / "such" / "folder.json").string()), std::runtime_error);
}

TEST_CASE("a failing seed names the command that replays it") {
  const auto command = test::replay_command(17);
  CHECK(command.starts_with("replay with: scripts/replay 17 'a failing seed names the command that replays it'"));
}

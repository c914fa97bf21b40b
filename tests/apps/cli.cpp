#include <algorithm>

#include "apps/command.hpp"

namespace {

cokv::test::command_outcome run(std::vector<std::string> arguments) {
  return cokv::test::run_command(std::move(arguments));
}

}  // namespace

TEST_CASE("--version prints the name and the version") {
  auto r = run({"--version"});
  CHECK(r.code == 0);
  CHECK(r.out.starts_with("cokv 0."));
}

TEST_CASE("--help lists the subcommands and a subcommand's --help its options") {
  auto r = run({"--help"});
  CHECK(r.code == 0);
  CHECK(r.out.find("doctor") != std::string::npos);
  r = run({"doctor", "--help"});
  CHECK(r.code == 0);
  CHECK(r.out.find("--json") != std::string::npos);
}

TEST_CASE("a bad command line is one line that names what is wrong, and exit code 2") {
  struct {
    std::vector<std::string> arguments;
    std::string named;
  } table[] = {
      {{"--nonsense"}, "--nonsense"},
      {{"doctor", "--nonsense"}, "--nonsense"},
      {{"doctor", "extra"}, "extra"},
      {{"--log-level", "loud", "doctor"}, "--log-level"},
      {{}, "subcommand"},
      {{"frobnicate"}, "frobnicate: unknown here; cokv --help"},
      {{"cache", "--frob"}, "--frob: unknown here; cokv cache --help"},
      {{"doctor", "--json=3"}, "--json: takes no value"},
      {{"cache", "--memory"}, "--memory: needs a value"},
      {{"cache", "--memory", "0"}, "--memory: 0: takes at least 1MiB"},
      {{"cache", "--memory", "100000TiB"}, "--memory: 100000TiB is more than twice the memory of this machine"},
      {{"cache", "--room", "100000TiB"}, "--room: "},
      {{"cache", "--dir", ""}, "--dir: its value is empty"},
      {{"cache", "--dir="}, "--dir: its value is empty"},
      {{"cache", "--listen", ""}, "--listen: its value is empty"},
      {{"cache", "--api-key-file", ""}, "--api-key-file: its value is empty"},
      {{"serve", "--model", ""}, "--model: its value is empty"},
      {{"serve", "--model", "m", "--name", ""}, "--name: its value is empty"},
      {{"serve", "--model", "m", "--kv-dir", ""}, "--kv-dir: its value is empty"},
      {{"serve", "--model", "m", "--kv-direct"}, "--kv-direct"},
      {{"serve", "--model", "m", "--kv-remote", ""}, "--kv-remote: its value is empty"},
      {{"serve", "--model", "m", "--trace", ""}, "--trace: its value is empty"},
      {{"serve", "--model", "m", "--kv-host", "100000TiB"}, "--kv-host: 100000TiB is more than twice"},
      {{"serve", "--model", "m", "--kv-blocks", "0"}, "--kv-blocks: 0: takes an integer from 1 to 1073741824"},
      {{"serve", "--model", "m", "--kv-blocks", "1x"}, "--kv-blocks: 1x: takes an integer"},
      {{"serve", "--model", "m", "--grace", "-1"}, "--grace: -1: takes an integer from 0 to 86400"},
      {{"serve", "--model", "m", "--dtype", "f8"}, "--dtype: f8: takes one of bf16, f32"},
      {{"serve", "--model", "m", "--device", "gpu"}, "--device: gpu: takes cpu, or cuda:N"},
      {{"serve", "--model", "m", "--device", "cuda:"}, "--device: cuda:: takes cpu, or cuda:N"},
      {{"serve", "--model", "m", "--device", "sim:h200"}, "--device: sim:h200: takes cpu, or cuda:N"},
  };
  for (auto& row : table) {
    CAPTURE(row.named);
    auto r = run(row.arguments);
    CHECK(r.code == 2);
    CHECK(r.out.empty());
    CHECK(r.err.find(row.named) != std::string::npos);
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
  }
}

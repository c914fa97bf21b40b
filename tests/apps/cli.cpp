#include "cli/cli.hpp"

#include <algorithm>
#include <sstream>

namespace {

struct outcome {
  int code;
  std::string out, err;
};

outcome run(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  const int code = cokv::cli::run(std::move(arguments), out, err);
  return {code, out.str(), err.str()};
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
      {{"frobnicate"}, "frobnicate"},
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

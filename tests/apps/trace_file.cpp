#include "serve/trace_file.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "cokv/runtime/error.hpp"
#include "engine/files.hpp"

using namespace cokv;
namespace fs = std::filesystem;

TEST_CASE("a trace that can't be written is refused at once, and nothing is left behind") {
  test::temp_dir at;
  const auto in = [&](const char* name) { return (at / name).string(); };
  fs::create_directory(in("folder"));
  std::ofstream(in("file")) << "x";
  REQUIRE(::mkfifo(in("pipe").c_str(), 0600) == 0);
  for (const auto& path : {in("folder"), in("folder") + "/", in("new") + "/", in("file") + "/trace", in("pipe"),
                           in("nowhere") + "/trace"}) {
    CAPTURE(path);
    CHECK_THROWS_WITH_AS(serve::trace_file("--trace", path), doctest::Contains(("--trace " + path + ": ").c_str()),
                         config_error);
  }
  std::size_t left = 0;
  for (auto& entry : fs::recursive_directory_iterator(at / "")) left += !entry.path().empty();
  CHECK(left == 3);
  { serve::trace_file unfinished("--trace", in("trace")); }
  CHECK_FALSE(fs::exists(in("trace")));
  CHECK_FALSE(fs::exists(in("trace") + ".part"));
}

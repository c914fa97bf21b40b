#include "http/api_keys.hpp"

#include <filesystem>
#include <fstream>

#include "cokv/runtime/error.hpp"

using cokv::http::api_keys;

namespace {

struct key_file {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("cokv_keys_" + std::to_string(::getpid()));
  explicit key_file(std::string_view text) { std::ofstream(path) << text; }
  ~key_file() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE("api keys: one a line; comments, blank lines and carriage returns aside") {
  key_file f("# team\n\nalpha\r\n  beta  \n");
  auto keys = api_keys::load(f.path.string());
  CHECK(keys.allows("Bearer alpha"));
  CHECK(keys.allows("bearer beta"));
  CHECK_FALSE(keys.allows("Bearer alph"));
  CHECK_FALSE(keys.allows("Bearer alphaa"));
  CHECK_FALSE(keys.allows("Bearer # team"));
  CHECK_FALSE(keys.allows("Bearer "));
  CHECK_FALSE(keys.allows("Basic alpha"));
  CHECK_FALSE(keys.allows("alpha"));
  CHECK_FALSE(keys.allows(""));
}

TEST_CASE("api keys: without keys everyone may") { CHECK(api_keys().allows("")); }

TEST_CASE("api keys: a missing file and a file without keys are named") {
  CHECK_THROWS_WITH_AS(api_keys::load("/nonexistent/keys"), doctest::Contains("/nonexistent/keys"), cokv::config_error);
  key_file f("# nothing\n");
  CHECK_THROWS_WITH_AS(api_keys::load(f.path.string()), doctest::Contains("holds no key"), cokv::config_error);
}

#include "http/api_keys.hpp"

#include <filesystem>
#include <fstream>

#include "cokv/runtime/error.hpp"

using cokv::http::api_keys;
using cokv::http::right;

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

TEST_CASE("api keys: a key alone may everything, and one with options what they say") {
  const auto ns = cokv::namespace_id::parse(std::string(64, 'a')),
             other = cokv::namespace_id::parse(std::string(64, 'b'));
  key_file f(
      "old\nwith blanks in it\n"
      "reader rights=read\n"
      "team\tname=team-a  rights=read,write memory=1GiB disk=2GiB\r\n"
      "team2 name=team-a memory=1GiB\n"
      "narrow name=n namespace=" +
      std::string(64, 'a') + " rights=write\n");
  const auto keys = api_keys::load(f.path.string());
  const auto old = keys.find("Bearer old");
  REQUIRE(old);
  CHECK(old->name.empty());
  for (const auto r : {right::read, right::write, right::admin}) CHECK(old->may(r));
  CHECK(old->may_use(*other));
  CHECK(keys.find("Bearer with blanks in it"));
  CHECK_FALSE(keys.find("Bearer with"));
  const auto reader = keys.find("Bearer reader");
  REQUIRE(reader);
  CHECK(reader->may(right::read));
  CHECK_FALSE(reader->may(right::write));
  CHECK_FALSE(reader->may(right::admin));
  CHECK(reader->may_any(right::read | right::admin));
  const auto team = keys.find("Bearer team");
  REQUIRE(team);
  CHECK(team->name == "team-a");
  CHECK(team->may(right::write));
  CHECK_FALSE(team->may(right::admin));
  CHECK(keys.find("Bearer team2")->name == "team-a");
  const auto narrow = keys.find("Bearer narrow");
  CHECK(narrow->may_use(*ns));
  CHECK_FALSE(narrow->may_use(*other));
  CHECK(keys.memory() == cokv::tenant_quotas{{"team-a", std::uint64_t{1} << 30}});
  CHECK(keys.disk() == cokv::tenant_quotas{{"team-a", std::uint64_t{2} << 30}});
}

TEST_CASE("api keys: a line that says what can't be meant is refused by its number, and no key is repeated") {
  const struct {
    const char *text, *words;
  } table[] = {
      {"# x\n\nsecret nam=x\n", "line 3"},
      {"secret rights=read,execute\n", "not execute"},
      {"secret rights=\n", "no right"},
      {"secret rights=read rights=write\n", "twice"},
      {"secret name=a b=c\n", "behind a key"},
      {"secret extra rights=read\n", "behind a key"},
      {"secret name=a/b\n", "letters"},
      {"secret memory=1GiB\n", "needs a name"},
      {"secret name=a memory=lots\n", "size"},
      {"secret name=a memory=0\n", "size"},
      {"secret namespace=abc\n", "64"},
      {"secret name=a memory=1GiB\nother name=a memory=2GiB\n", "another quota"},
      {"secret rights=read\nsecret rights=write\n", "other rights"},
  };
  for (const auto& row : table) {
    CAPTURE(row.text);
    key_file f(row.text);
    try {
      api_keys::load(f.path.string());
      FAIL("not refused");
    } catch (const cokv::config_error& e) {
      const std::string said = e.what();
      CHECK_MESSAGE(said.find(row.words) != said.npos, said);
      CHECK(said.find("secret") == said.npos);
    }
  }
}

TEST_CASE("api keys: a missing file and a file without keys are named") {
  CHECK_THROWS_WITH_AS(api_keys::load("/nonexistent/keys"), doctest::Contains("/nonexistent/keys"), cokv::config_error);
  key_file f("# nothing\n");
  CHECK_THROWS_WITH_AS(api_keys::load(f.path.string()), doctest::Contains("holds no key"), cokv::config_error);
}

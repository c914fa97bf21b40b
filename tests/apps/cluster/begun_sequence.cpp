#include "cluster/begun_sequence.hpp"

#include <doctest/doctest.h>
#include <boost/json/serialize.hpp>

#include "http/json.hpp"

using namespace cokv;
using namespace cokv::cluster;
using enum begun_state;

TEST_CASE("begun_sequence: there and back, and what is wrong is named") {
  for (auto state : {waits, decodes, over, failed}) {
    const begun_sequence s{.attempt = 2, .pieces = 7, .continues = 3, .state = state};
    const auto back = read_begun(to_json(s));
    REQUIRE(back.has_value());
    CHECK(back->attempt == 2);
    CHECK(back->pieces == 7);
    CHECK(back->continues == 3);
    CHECK(back->state == state);
  }
  CHECK(boost::json::serialize(to_json(begun_sequence{1, 5, 0, decodes})) ==
        R"({"attempt":1,"pieces":5,"continues":0,"state":"decodes"})");
  for (const char* bad : {"[]", "{}", R"({"attempt":1,"pieces":5,"continues":0})",
                          R"({"attempt":1,"pieces":5,"continues":0,"state":"dances"})",
                          R"({"attempt":1,"pieces":-5,"continues":0,"state":"over"})",
                          R"({"attempt":4294967295,"pieces":5,"continues":0,"state":"over"})",
                          R"({"attempt":1,"pieces":5,"continues":0,"state":"over","more":1})"}) {
    CAPTURE(bad);
    const auto v = http::parse_json(bad);
    REQUIRE(v.has_value());
    CHECK(read_begun(*v).has_error());
  }
}

TEST_CASE("begun_sequence: what is followed began with the prompt, and has most; else a room is used again") {
  CHECK(!choose({}).follow);
  CHECK(choose({}).attempt == 0);
  const begun_sequence all[] = {
      {1, 9, 0, failed}, {1, 3, 0, over}, {2, 5, 0, decodes}, {4, 50, 7, decodes}, {3, 1, 0, waits}};
  const auto c = choose(all);
  CHECK(c.follow == 2);
  CHECK(!c.room);
  CHECK(c.attempt == 4);
  const begun_sequence none[] = {{1, 9, 0, failed}, {4, 50, 7, over}, {2, 0, 0, waits}, {3, 1, 7, waits}};
  const auto d = choose(none);
  CHECK(!d.follow);
  CHECK(d.room == 3);
  CHECK(d.attempt == 4);
}

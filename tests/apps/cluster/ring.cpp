// Who keeps copies of whose answers, and how it is told.
#include "cluster/ring.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>

#include "cokv/runtime/error.hpp"
#include "http/json.hpp"

using namespace cokv;
using namespace cokv::cluster;

namespace {

using id = ring_book::id;

std::map<id, ring_book::standing> lives(std::initializer_list<id> ids) {
  std::map<id, ring_book::standing> out;
  for (auto one : ids) out[one].life = "life-" + std::to_string(one);
  return out;
}

std::vector<std::string> links(id of) { return {"tcp://host-" + std::to_string(of) + ":1"}; }

parsed<ring_place> read(std::string_view text) { return read_ring_place(*http::parse_json(text)); }

}  // namespace

TEST_CASE("ring_book: copies go to those behind, once around, and a new ring has a new epoch") {
  ring_book ring(2);
  CHECK(ring.epoch() == 0);
  CHECK(ring.stand(lives({5, 3, 9})));
  CHECK(ring.epoch() == 1);
  CHECK_FALSE(ring.stand(lives({9, 5, 3})));
  CHECK(ring.holders(3) == std::vector<id>{5, 9});
  CHECK(ring.holders(9) == std::vector<id>{3, 5});
  const auto place = ring.place_of(5, links);
  CHECK(place.epoch == 1);
  CHECK(place.replicas == 2);
  CHECK(place.successors == std::vector<ring_member>{{"life-9", links(9)}, {"life-3", links(3)}});
  CHECK(ring.stand(lives({3, 9})));
  CHECK(ring.epoch() == 2);
  CHECK(ring.holders(3) == std::vector<id>{9});
  CHECK(ring.holders(5) == std::vector<id>{9, 3});  // who is lost had copies there
  CHECK_FALSE(ring.contains(5));
  CHECK(ring.place_of(5, links).successors.empty());
  ring.forget(5);
  CHECK(ring.holders(5).empty());
  auto again = lives({3, 9});
  again[9].life = "another run";
  CHECK(ring.stand(again));
  CHECK(ring.place_of(3, links).successors.front().life == "another run");
  CHECK(ring.stand(lives({3})));
  CHECK(ring.holders(3).empty());
}

TEST_CASE("ring_book: nobody is told of copies that are not wanted, and epochs grow above others'") {
  ring_book none(0);
  CHECK_FALSE(none.stand(lives({1, 2})));
  none.heard(7);
  CHECK(none.epoch() == 0);
  ring_book one(1);
  CHECK(one.stand(lives({1, 2})));
  // What workers were told by another router: 0 is none, and in the upper half a lie.
  const std::pair<std::uint64_t, std::uint64_t> said[] = {
      {0, 1}, {1, 2}, {7, 8}, {3, 8}, {most_epoch / 2, 8}, {std::numeric_limits<std::uint64_t>::max(), 8}};
  for (const auto& [epoch, above] : said) {
    one.heard(epoch);
    CHECK(one.epoch() == above);
  }
  CHECK_THROWS_AS(ring_book(3), config_error);
}

TEST_CASE("ring_book: whoever comes and goes, each has as many holders as there are others, and none twice") {
  std::mt19937_64 random(3);
  for (std::uint32_t replicas : {1u, 2u}) {
    ring_book ring(replicas);
    std::map<id, ring_book::standing> here;
    std::uint64_t epoch = 0;
    for (int i = 0; i < 3000; ++i) {
      const auto one = static_cast<id>(random() % 9);
      const auto before = here;
      if (random() % 2)
        here.erase(one);
      else
        here[one] = {"life-" + std::to_string(random() % 3)};
      CHECK(ring.stand(here) == (here != before));
      CHECK(ring.epoch() >= epoch);
      epoch = ring.epoch();
      std::map<id, std::size_t> kept;
      for (auto& [who, life] : here) {
        const auto to = ring.holders(who);
        CHECK(to.size() == std::min<std::size_t>(replicas, here.size() - 1));
        CHECK(std::set(to.begin(), to.end()).size() == to.size());
        for (auto t : to) {
          CHECK(t != who);
          CHECK(here.contains(t));
          ++kept[t];
        }
      }
      for (auto& [who, n] : kept) CHECK(n <= replicas);  // evenly
    }
  }
}

TEST_CASE("ring_book: copies go to workers of the same KV, past those of another") {
  kv_wire small{2, 2, 8, 16, dtype::f32}, large = small;
  large.block_tokens = 32;
  ring_book ring(2);
  CHECK(ring.stand({{1, {"a", small}}, {2, {"b", large}}, {3, {"c", small}}, {4, {"d", large}}, {5, {"e", small}}}));
  CHECK(ring.holders(1) == std::vector<id>{3, 5});
  CHECK(ring.holders(5) == std::vector<id>{1, 3});
  CHECK(ring.holders(2) == std::vector<id>{4});
  CHECK(ring.place_of(2, links).successors == std::vector<ring_member>{{"d", links(4)}});
  CHECK(ring.stand({{1, {"a", small}}, {2, {"b", large}}}));
  CHECK(ring.holders(1).empty());
}

TEST_CASE("ring_place: it reads back as it was, and what is none is refused by its name") {
  const ring_place p{.epoch = most_epoch, .replicas = 2, .successors = {{"a", links(1)}, {"b", {}}}};
  const auto back = read_ring_place(to_json(p));
  REQUIRE(back.has_value());
  CHECK(back->epoch == p.epoch);
  CHECK(back->replicas == 2);
  CHECK(back->successors == p.successors);
  const auto named = [](std::string_view text) { return read(text).error().parameter; };
  CHECK(named(R"({"epoch":0,"replicas":1,"successors":[]})") == "epoch");
  CHECK(named(R"({"epoch":9007199254740993,"replicas":1,"successors":[]})") == "epoch");
  CHECK(named(R"({"epoch":1,"replicas":3,"successors":[]})") == "replicas");
  CHECK(named(R"({"epoch":1,"replicas":1,"successors":[{"life":"a b","links":[]}]})") == "successors");
  CHECK(named(R"({"epoch":1,"replicas":1,"successors":[{"life":"a","links":[1]}]})") == "successors");
  CHECK(named(R"({"epoch":1,"replicas":1,"successors":[{"life":"a","links":[]},{"life":"b","links":[]}]})") ==
        "successors");
  CHECK(named(R"({"epoch":1,"replicas":1,"successors":[],"more":1})") == "more");
  CHECK(named(R"({"epoch":1,"replicas":1})") == "successors");
  CHECK(read_lost_answer(to_json(lost_answer{"life", 3}))->attempt == 3);
  CHECK_FALSE(read_lost_answer(*http::parse_json(R"({"life":"","attempt":1})")).has_value());
  CHECK_FALSE(read_lost_answer(*http::parse_json(R"({"life":"a","attempt":1025})")).has_value());
}

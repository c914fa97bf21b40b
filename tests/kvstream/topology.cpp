#include "cokv/kvstream/topology.hpp"

#include <doctest/doctest.h>

#include <random>
#include <ranges>
#include <stdexcept>

#include "cokv/runtime/error.hpp"

using namespace cokv;

TEST_CASE("topology: the example of its header") {
  topology prompt(4, 2), token(2, 4, 8);
  CHECK(prompt.workers() == token.workers());
  CHECK(token.text() == "pp2xtp4xmb8");
  CHECK(topology::parse("pp2xtp4xmb8") == token);
  CHECK(token.heads(2, 3) == index_range{1, 1});
}

TEST_CASE("topology: stages partition the layers and differ by one at most") {
  for (std::uint32_t layers = 1; layers <= 40; ++layers)
    for (std::uint32_t depth = 1; depth <= layers; ++depth) {
      topology t(depth, 1);
      t.check(layers);
      std::uint32_t next = 0;
      for (std::uint32_t stage = 0; stage < depth; ++stage) {
        auto range = t.layers(layers, stage);
        REQUIRE(range.first == next);
        REQUIRE(range.count >= layers / depth);
        REQUIRE(range.count <= (layers + depth - 1) / depth);
        next += range.count;
      }
      REQUIRE(next == layers);
    }
}

TEST_CASE("topology: stages may be given") {
  topology t(3, 2, 0, {0, 10, 21});
  t.check(28);
  CHECK(t.layers(28, 0) == index_range{0, 10});
  CHECK(t.layers(28, 1) == index_range{10, 11});
  CHECK(t.layers(28, 2) == index_range{21, 7});
  CHECK(topology(1, 2, 0, {0}) == topology(1, 2));
}

TEST_CASE("topology: every head has its ranks, evenly, and every rank its heads") {
  for (std::uint32_t heads = 1; heads <= 20; ++heads)
    for (std::uint32_t degree = 1; degree <= 24; ++degree) {
      topology t(1, degree);
      std::vector<std::uint32_t> kept_by(heads);
      for (std::uint32_t rank = 0; rank < degree; ++rank) {
        auto mine = t.heads(heads, rank);
        REQUIRE(mine.count >= std::max(1u, heads / degree));
        REQUIRE(mine.count <= (heads + degree - 1) / degree);
        REQUIRE(mine.end() <= heads);
        for (auto head = mine.first; head < mine.end(); ++head) {
          ++kept_by[head];
          auto ranks = t.ranks(heads, head);
          REQUIRE(rank >= ranks.first);
          REQUIRE(rank < ranks.end());
        }
      }
      for (std::uint32_t head = 0; head < heads; ++head) {
        REQUIRE(kept_by[head] == t.ranks(heads, head).count);
        REQUIRE(kept_by[head] >= std::max(1u, degree / heads));
        REQUIRE(kept_by[head] <= std::max(1u, (degree + heads - 1) / heads));
      }
    }
  CHECK(topology(1, 8).heads(0, 7) == index_range{0, 0});
}

TEST_CASE("topology: a sequence lies in a microbatch at a place") {
  topology t(4, 1, 3);
  CHECK(t.slot(0) == batch_slot{0, 0});
  CHECK(t.slot(7) == batch_slot{2, 1});
  CHECK(t.microbatches(0) == 0);
  CHECK(t.microbatches(6) == 2);
  CHECK(t.microbatches(7) == 3);
  topology whole(4, 1);
  CHECK(whole.slot(7) == batch_slot{0, 7});
  CHECK(whole.microbatches(7) == 1);
  CHECK(whole.microbatches(0) == 0);
}

TEST_CASE("topology: workers are numbered stage by stage") {
  topology t(3, 4);
  for (std::uint32_t n = 0; n < t.workers(); ++n) CHECK(t.number(t.at(n)) == n);
  CHECK(t.at(5) == worker{1, 1});
  CHECK_THROWS_AS(t.at(12), std::out_of_range);
  CHECK_THROWS_AS(t.layers(12, 3), std::out_of_range);
  CHECK_THROWS_AS(t.heads(8, 4), std::out_of_range);
  CHECK_THROWS_AS(t.ranks(8, 8), std::out_of_range);
}

TEST_CASE("topology: what no model can have is refused") {
  CHECK_THROWS_AS(topology(0, 1), config_error);
  CHECK_THROWS_AS(topology(1, 0), config_error);
  CHECK_THROWS_AS(topology(topology::max_depth + 1, 1), config_error);
  CHECK_THROWS_AS(topology(1, topology::max_degree + 1), config_error);
  CHECK_THROWS_AS(topology(64, 65), config_error);
  CHECK_THROWS_AS(topology(2, 1, 0, {0}), config_error);
  CHECK_THROWS_AS(topology(2, 1, 0, {1, 2}), config_error);
  CHECK_THROWS_AS(topology(3, 1, 0, {0, 5, 5}), config_error);
  CHECK_THROWS_AS(topology(2, 1, 0, {0, geometry::max_layers}), config_error);
  CHECK_THROWS_AS(topology(5, 1).check(4), config_error);
  CHECK_THROWS_AS(topology(2, 1, 0, {0, 4}).check(4), config_error);
  CHECK_NOTHROW(topology(2, 1, 0, {0, 3}).check(4));
  CHECK_THROWS_WITH(topology(0, 1), "topology: the pipeline's depth is 0, not 1 to 1024");
}

TEST_CASE("topology: the text says everything, in one spelling") {
  std::mt19937 random(3);
  auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 500; ++round) {
    auto depth = 1 + below(round % 10 == 0 ? topology::max_depth : 9);
    std::vector<std::uint32_t> starts;
    if (below(2) == 0)
      for (std::uint32_t i = 0, at = 0; i < depth; ++i, at += 1 + below(3)) starts.push_back(at);
    auto degrees = std::min(topology::max_degree, topology::max_workers / depth);
    topology t(depth, 1 + below(degrees), below(3) * below(1000), std::move(starts));
    auto text = t.text();
    REQUIRE(text.size() <= topology::max_text);
    auto parsed = topology::parse(text);
    REQUIRE(parsed);
    REQUIRE(*parsed == t);
  }
}

TEST_CASE("topology: a text that is none is refused") {
  std::string_view bad =
      "|pp|pp4|pp4x|pp4xtp|xtp2|tp2xpp4|pp4xtp2 | pp4xtp2|PP4xtp2|pp04xtp2|pp4xtp02|pp+4xtp2|pp-4xtp2|"
      "pp0xtp2|pp4xtp0|pp4xtp2xmb|pp4xtp2xmb0|pp4xtp2xmb8x|pp4xtp2,mb8|pp4294967297xtp2|"
      "pp4xtp99999999999999999999|pp1025xtp1|pp64xtp65|pp1xtp257|pp2@xtp1|pp2@0xtp1|pp2@0,xtp1|pp2@0,5,xtp1|"
      "pp2@1,5xtp1|pp2@0,0xtp1|pp2@0,05xtp1|pp2@0,5,9xtp1|pp1@0xtp1|pp2@0,4096xtp1|pp2@0@5xtp1|pp2,0,5xtp1";
  for (auto part : bad | std::views::split('|')) {
    std::string text(part.begin(), part.end());
    CHECK_MESSAGE(!topology::parse(text), text);
  }
  CHECK(!topology::parse(std::string_view("pp4xtp2\0", 8)));
  CHECK(!topology::parse("pp2@0," + std::string(topology::max_text, '5') + "xtp1"));
  // What is one byte away from a text is another topology or none, and never a fault.
  std::string good = "pp3@0,10,21xtp2xmb8";
  for (std::size_t at = 0; at < good.size(); ++at)
    for (int byte = 0; byte < 256; ++byte) {
      auto changed = good;
      changed[at] = static_cast<char>(byte);
      auto t = topology::parse(changed);
      REQUIRE((!t || t->text() == changed));
    }
}

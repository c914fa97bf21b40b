#include "cokv/kvstream/route.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "cokv/runtime/error.hpp"

using namespace cokv;

namespace {

geometry llama() { return geometry::attention(32, 8, 128, dtype::bf16); }

geometry deepseek() {
  return geometry(64, {{0, 60, 0, {{"latent", dtype::bf16, false, 512}, {"rope", dtype::bf16, false, 64}}}});
}

std::size_t legs(const topology& from, const topology& to, const geometry& model, request_batch batch = {}) {
  return route(from, to, model, batch).legs().size();
}

}  // namespace

TEST_CASE("route: the example of its header") {
  topology prompt(2, 1), token(1, 2);
  auto model = llama();
  route way(prompt, token, model, {.sequences = 8});
  CHECK(way.digest() == route(prompt, token, model, {.sequences = 8}).digest());
  std::uint64_t bytes = 0;
  for (auto index : way.sent_by({.stage = 1, .rank = 0})) {
    auto& leg = way.legs()[index];
    CHECK(leg.from.layers == index_range{0, 16});
    CHECK(leg.to.layers == index_range{16, 16});
    for (auto s = leg.sequences.first; s < leg.sequences.end(); ++s) bytes += token_bytes(model, leg);
  }
  CHECK(bytes * 16 == model.block_bytes() / 2 * 8);
}

TEST_CASE("route: a leg names layers, heads and slots on both sides") {
  route way(topology(1, 2, 4), topology(2, 4, 3), llama(), {.sequences = 2, .from_first = 5, .to_first = 7});
  // Two stages and two ranks for each sender.
  REQUIRE(way.legs().size() == 8);
  CHECK(way.legs()[7] == leg{.sequences = {0, 2},
                             .layers = {16, 16},
                             .heads = {6, 2},
                             .planes = plane_set::per_head,
                             .from = {.worker = {0, 1}, .layers = {16, 16}, .heads = {2, 2}, .first = {1, 1}},
                             .to = {.worker = {1, 3}, .layers = {0, 16}, .heads = {0, 2}, .first = {2, 1}}});
}

TEST_CASE("route: between equal topologies each worker has one leg to its like") {
  auto with_scales = geometry(16, {{0, 10, 8, {{"k", dtype::u8, true, 128}, {"scales", dtype::f32, false, 4}}}});
  for (auto& model : {llama(), deepseek(), with_scales, geometry::attention(30, 2, 64, dtype::f16)})
    for (std::uint32_t depth : {1, 2, 3, 7})
      for (std::uint32_t degree : {1, 2, 4, 8}) {
        topology t(depth, degree);
        route way(t, t, model, {.sequences = 4});
        REQUIRE(way.legs().size() == t.workers());
        for (auto& leg : way.legs()) CHECK(leg.from == leg.to);
      }
}

TEST_CASE("route: legs are few") {
  CHECK(legs(topology(4, 1), topology(1, 1), llama()) == 4);
  CHECK(legs(topology(4, 1), topology(2, 1), llama()) == 4);
  CHECK(legs(topology(4, 1), topology(3, 1), llama()) == 6);  // each boundary of either side cuts once
  CHECK(legs(topology(1, 2), topology(1, 8), llama()) == 8);
  CHECK(legs(topology(1, 8), topology(1, 2), llama()) == 8);
  CHECK(legs(topology(1, 16), topology(1, 16), llama()) == 16);
  CHECK(legs(topology(1, 16), topology(1, 8), llama()) == 16);   // twins send half the layers each
  CHECK(legs(topology(1, 4), topology(1, 1), deepseek()) == 4);  // a quarter of the layers each
  CHECK(legs(topology(1, 1), topology(1, 4), deepseek()) == 4);  // all of it to each
  CHECK(legs(topology(4, 2), topology(2, 4), deepseek()) == 16);
  // Microbatches of 4 and of 3: 0-2, 3, 4-5, 6-7.
  CHECK(legs(topology(1, 1, 4), topology(1, 1, 3), llama(), {.sequences = 8}) == 4);
}

TEST_CASE("route: twins with less layers than they are share the sequences") {
  auto model = geometry::attention(2, 1, 8, dtype::f32);
  route way(topology(2, 4), topology(1, 1), model, {.sequences = 4});
  CHECK(way.legs().size() == 8);
  std::set<std::uint32_t> of_stage;
  for (auto& leg : way.legs()) {
    CHECK(leg.sequences.count == 1);
    if (leg.from.worker.stage == 1) of_stage.insert(leg.from.worker.rank);
  }
  CHECK(of_stage.size() == 4);
}

TEST_CASE("route: layers without heads are carried along with their neighbours") {
  // Every other layer keeps a latent: one leg each way all the same.
  std::vector<layer_group> groups;
  for (std::uint32_t i = 0; i < 8; ++i)
    groups.push_back(i % 2 ? layer_group{i, 1, 0, {{"c", dtype::bf16, false, 8}}}
                           : layer_group{i, 1, 4, {{"k", dtype::bf16, true, 8}}});
  geometry model(16, groups);
  route way(topology(2, 1), topology(1, 2), model);
  REQUIRE(way.legs().size() == 4);
  for (auto& leg : way.legs()) CHECK(leg.planes == plane_set::all);
}

TEST_CASE("route: legs are in order of sequences and then of layers") {
  route way(topology(4, 2, 2), topology(3, 4, 3), llama(), {.sequences = 7});
  auto order = [](const leg& l) { return std::pair(l.sequences.first, l.layers.first); };
  CHECK(std::ranges::is_sorted(way.legs(), {}, order));
}

TEST_CASE("route: the legs of workers are all legs, and no two workers' the same") {
  topology from(4, 2), to(3, 4);
  route way(from, to, llama(), {.sequences = 3});
  for (bool sent : {true, false}) {
    std::set<std::uint32_t> seen;
    auto& side = sent ? from : to;
    for (std::uint32_t n = 0; n < side.workers(); ++n) {
      auto mine = sent ? way.sent_by(side.at(n)) : way.received_by(side.at(n));
      CHECK(!mine.empty());
      CHECK(std::ranges::is_sorted(mine));
      for (auto index : mine) {
        CHECK((sent ? way.legs()[index].from : way.legs()[index].to).worker == side.at(n));
        CHECK(seen.insert(index).second);
      }
    }
    CHECK(seen.size() == way.legs().size());
  }
}

TEST_CASE("route: the digest tells apart whatever the legs depend on") {
  std::set<std::uint64_t> seen;
  auto add = [&](const topology& from, const topology& to, const geometry& model, request_batch batch) {
    CHECK(seen.insert(route(from, to, model, batch).digest()).second);
  };
  add(topology(4, 2), topology(2, 4), llama(), {});
  add(topology(2, 4), topology(4, 2), llama(), {});
  add(topology(4, 2, 8), topology(2, 4), llama(), {});
  add(topology(4, 2), topology(2, 4, 8), llama(), {});
  add(topology(4, 2, 0, {0, 8, 16, 23}), topology(2, 4), llama(), {});
  add(topology(4, 2), topology(2, 4), deepseek(), {});
  add(topology(4, 2), topology(2, 4), llama(), {.sequences = 2});
  add(topology(4, 2), topology(2, 4), llama(), {.from_first = 1});
  add(topology(4, 2), topology(2, 4), llama(), {.to_first = 1});
  // Sent between machines.
  CHECK(route(topology(4, 2), topology(2, 4), llama()).digest() == 13923243313059359441u);
}

TEST_CASE("route: what can't be routed is refused") {
  CHECK_THROWS_AS(route(topology(33, 1), topology(1, 1), llama()), config_error);
  CHECK_THROWS_AS(route(topology(1, 1), topology(33, 1), llama()), config_error);
  CHECK_THROWS_AS(route(topology(), topology(), llama(), {.sequences = 0}), config_error);
  CHECK_THROWS_AS(route(topology(), topology(), llama(), {.sequences = route::max_sequences + 1}), config_error);
  CHECK_THROWS_AS(route(topology(), topology(), llama(), {.sequences = 2, .from_first = 4294967294u}), config_error);
  CHECK_THROWS_AS(route(topology(1, 256, 1), topology(1, 255, 1), llama(), {.sequences = 4096}), config_error);
}

TEST_CASE("route: the largest topologies take no unreasonable work") {
  // A layer a stage, so that every sequence is looked at; and a peer may ask for this.
  auto model = geometry::attention(4, 1, 128, dtype::bf16);
  route way(topology(4, 256), topology(4, 255), model, {.sequences = 4096});
  CHECK(way.legs().size() == 4 * (256 + 255 - 1));
}

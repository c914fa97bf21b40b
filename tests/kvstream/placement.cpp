#include "cokv/kvstream/placement.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "cokv/runtime/error.hpp"

using namespace cokv;

namespace {

geometry mixed() {
  return geometry(4, {{0, 3, 3, {{"k", dtype::bf16, true, 6}, {"v", dtype::bf16, true, 4}}},
                      {3, 2, 0, {{"c", dtype::f32, false, 5}}},
                      {5, 3, 2, {{"k", dtype::u8, true, 8}, {"s", dtype::f32, false, 1}}}});
}

// Every (layer, head) that a worker keeps, as text.
std::string kept(const placement& p) {
  std::string out;
  for (auto layer = p.layers().first; layer < p.layers().end(); ++layer)
    out += std::to_string(layer) + ":" + std::to_string(p.heads(layer).first) + "+" +
           std::to_string(p.heads(layer).count) + " ";
  return out;
}

}  // namespace

TEST_CASE("placement: the example of its header") {
  auto model = geometry::attention(28, 4, 128, dtype::bf16);
  placement here(topology(4, 2), model, {.stage = 1, .rank = 1});
  CHECK(pool_bytes(here.shape(), 1024) == pool_bytes(model, 1024) / 8);
  CHECK(here.local_layer(9) == 2);
  CHECK(here.global_layer(2) == 9);
  CHECK(here.heads(9) == index_range{2, 2});
  CHECK(here.shape() == geometry::attention(7, 2, 128, dtype::bf16));
}

TEST_CASE("placement: a stage may end inside a layer group, and a group keeps its own heads") {
  placement p(topology(2, 2, 0, {0, 4}), mixed(), {0, 1});
  CHECK(p.layers() == index_range{0, 4});
  CHECK(p.shape() == geometry(4, {{0, 3, 2, {{"k", dtype::bf16, true, 6}, {"v", dtype::bf16, true, 4}}},
                                  {3, 1, 0, {{"c", dtype::f32, false, 5}}}}));
  CHECK(p.heads(0) == index_range{1, 2});
  CHECK(p.heads(3) == index_range{0, 0});
  CHECK(p.holds(3));
  CHECK(!p.holds(4));
  CHECK_THROWS_AS(p.heads(4), std::out_of_range);
  CHECK_THROWS_AS(p.local_layer(4), std::out_of_range);
  CHECK_THROWS_AS(p.global_layer(4), std::out_of_range);

  placement q(topology(2, 2, 0, {0, 4}), mixed(), {1, 0});
  CHECK(q.shape() == geometry(4, {{0, 1, 0, {{"c", dtype::f32, false, 5}}},
                                  {1, 3, 1, {{"k", dtype::u8, true, 8}, {"s", dtype::f32, false, 1}}}}));
  CHECK(q.heads(5) == index_range{0, 1});
}

TEST_CASE("placement: a worker of one is the model itself") {
  for (auto& model : {mixed(), geometry::attention(8, 4, 32, dtype::f32)}) {
    placement p(topology(), model, {});
    CHECK(p.shape() == model);
    CHECK(p.name("m") == namespace_id::of("m", model));
  }
}

TEST_CASE("placement: workers have the same name exactly when they keep the same") {
  // 3 heads and 2 on 8 ranks: some ranks share a head of the one and not of the other.
  auto uneven = geometry(4, {{0, 2, 3, {{"k", dtype::f16, true, 2}}}, {2, 2, 2, {{"k", dtype::f16, true, 2}}}});
  for (auto& model : {mixed(), uneven, geometry::attention(8, 6, 4, dtype::f16)}) {
    std::map<std::string, namespace_id> names;
    std::set<namespace_id> distinct;
    for (std::uint32_t depth : {1, 2, 3, 4})
      for (std::uint32_t degree : {1, 2, 3, 4, 5, 8, 12}) {
        topology t(depth, degree);
        for (std::uint32_t n = 0; n < t.workers(); ++n) {
          placement p(t, model, t.at(n));
          auto [known, added] = names.emplace(kept(p), p.name("m"));
          CHECK(known->second == p.name("m"));
          if (added) CHECK(distinct.insert(p.name("m")).second);
        }
      }
  }
}

TEST_CASE("placement: a worker's layers keep their windows") {
  plane k{"k", dtype::f16, true, 2};
  geometry model(4, {{0, 3, 4, {k}, 64}, {3, 1, 4, {k}}});
  placement p(topology(2, 2), model, {0, 1}), q(topology(2, 2), model, {1, 0});
  CHECK(p.shape() == geometry(4, {{0, 2, 2, {k}, 64}}));
  CHECK(q.shape() == geometry(4, {{0, 1, 2, {k}, 64}, {1, 1, 2, {k}}}));
}

TEST_CASE("placement: what does not fit is refused") {
  auto model = geometry::attention(4, 4, 32, dtype::f32);
  CHECK_THROWS_AS(placement(topology(5, 1), model, {}), config_error);
  CHECK_THROWS_AS(placement(topology(2, 2), model, {2, 0}), std::out_of_range);
  CHECK_THROWS_AS(placement(topology(2, 2), model, {0, 2}), std::out_of_range);
  CHECK_THROWS_AS(placement(topology(2, 2), mixed(), {0, 0}).name(""), config_error);
}

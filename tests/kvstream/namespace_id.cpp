#include "cokv/kvstream/namespace_id.hpp"

#include <doctest/doctest.h>

#include <set>

#include "cokv/runtime/error.hpp"

using namespace cokv;

TEST_CASE("namespace: the text and its name are golden") {
  auto g = geometry::attention(2, 4, 32, dtype::f32);
  CHECK(canonical_namespace("tiny", g) ==
        "cokv.kv.1\nmodel:4:tiny\ngeometry:tokens=16;layers=0+2,heads=4,k:f32*32,v:f32*32\n"
        "shard:layers=0+2/2,heads=0+4/4\n");
  CHECK(namespace_id::of("tiny", g).hex() == "d25c7621f010239018f3e240b008f525a6c65702b7db9897ce23fc413c817918");
  CHECK(namespace_id::parse(namespace_id::of("tiny", g).hex()) == namespace_id::of("tiny", g));
}

TEST_CASE("namespace: another model, dtype, layout or shard has another name") {
  std::set<namespace_id> seen;
  auto g = geometry::attention(8, 4, 32, dtype::f32);
  seen.insert(namespace_id::of("a", g));
  seen.insert(namespace_id::of("b", g));
  seen.insert(namespace_id::of("a", geometry::attention(8, 4, 32, dtype::bf16)));
  seen.insert(namespace_id::of("a", geometry::attention(8, 4, 32, dtype::f32, 32)));
  seen.insert(namespace_id::of("a", geometry::attention(8, 2, 64, dtype::f32)));
  seen.insert(
      namespace_id::of("a", geometry(16, {{0, 8, 4, {{"v", dtype::f32, true, 32}, {"k", dtype::f32, true, 32}}}})));
  seen.insert(namespace_id::of("a", g, {.of_layers = 16}));
  seen.insert(namespace_id::of("a", g, {.first_layer = 8, .of_layers = 16}));
  seen.insert(namespace_id::of("a", g, {.of_heads = 8}));
  seen.insert(namespace_id::of("a", g, {.first_head = 4, .of_heads = 8}));
  CHECK(seen.size() == 10);
  CHECK(namespace_id::of("a", g) == namespace_id::of("a", g, {.of_layers = 8, .of_heads = 4}));
}

TEST_CASE("namespace: a fingerprint can't imitate the rest of the description") {
  auto g = geometry::attention(2, 4, 32, dtype::f32);
  auto whole = canonical_namespace("m", g);
  CHECK(canonical_namespace("m\ngeometry:x", g).find("model:12:") != std::string::npos);
  CHECK(namespace_id::of("m", g) != namespace_id::of(whole.substr(18), g));
}

TEST_CASE("namespace: an empty fingerprint and a shard that does not fit are refused") {
  auto g = geometry::attention(8, 4, 32, dtype::f32);
  CHECK_THROWS_AS(namespace_id::of("", g), config_error);
  CHECK_THROWS_AS(namespace_id::of("a", g, {.first_layer = 1, .of_layers = 8}), config_error);
  CHECK_THROWS_AS(namespace_id::of("a", g, {.first_head = 4294967295u, .of_heads = 8}), config_error);
}

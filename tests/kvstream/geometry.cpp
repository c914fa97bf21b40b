#include "cokv/kvstream/geometry.hpp"

#include <doctest/doctest.h>

#include <set>

#include "cokv/runtime/error.hpp"

using namespace cokv;

TEST_CASE("geometry: a block of every model in the table has its known size") {
  struct row {
    const char* model;
    std::uint32_t layers, heads, head_size;
    std::uint64_t bytes;
  };
  for (auto& r : {row{"Qwen2.5-7B", 28, 4, 128, 917'504}, row{"Qwen2.5-3B", 36, 2, 128, 589'824},
                  row{"Qwen2.5-32B", 64, 8, 128, 4'194'304}, row{"glm-4-9b-chat-1m", 40, 4, 128, 1'310'720},
                  row{"Llama-3.1-8B", 32, 8, 128, 2'097'152}, row{"GPT-2", 12, 12, 64, 589'824},
                  row{"OPT-13B", 40, 40, 128, 13'107'200}, row{"OPT-66B", 64, 72, 128, 37'748'736},
                  row{"BLOOM-176B", 70, 112, 128, 64'225'280}}) {
    CAPTURE(r.model);
    for (auto type : {dtype::bf16, dtype::f16}) {
      auto g = geometry::attention(r.layers, r.heads, r.head_size, type);
      CHECK(g.block_bytes() == r.bytes);
      CHECK(g.segment_bytes(r.layers - 1) == r.bytes / r.layers);
      CHECK(g.layout().bytes() == r.bytes);
      CHECK(g.layout().layers() == r.layers);
      CHECK(g.layers() == r.layers);
      CHECK(g.block_tokens() == 16);
      CHECK(g.kv_heads(r.layers - 1) == r.heads);
      CHECK(g.row_bytes(0, 0) == r.head_size * 2);
      CHECK(g.row_bytes(0, 1) == r.head_size * 2);
      CHECK(g.head_bytes(0) == 2 * 16 * r.head_size * 2);
      CHECK(g.plane_offset(0, 1, 1) == g.head_bytes(0) + 16 * r.head_size * 2);
      CHECK(g.group(0).window == 0);
    }
    CHECK(geometry::attention(r.layers, r.heads, r.head_size, dtype::fp8_e4m3).block_bytes() == r.bytes / 2);
    CHECK(geometry::attention(r.layers, r.heads, r.head_size, dtype::f32, 32).block_bytes() == r.bytes * 4);
  }
}

TEST_CASE("geometry: a compressed latent has planes without heads") {
  geometry g(16, {{0, 61, 0, {{"latent", dtype::bf16, false, 512}, {"rope", dtype::bf16, false, 64}}}});
  CHECK(g.segment_bytes(0) == 16 * (512 + 64) * 2);
  CHECK(g.block_bytes() == 61 * 18'432);
  CHECK(g.head_bytes(0) == 0);
  CHECK(g.plane_offset(3, 0, 1) == 16 * 512 * 2);
}

TEST_CASE("geometry: fp8 data carries its scales, head by head") {
  geometry g(16, {{0,
                   2,
                   4,
                   {{"k", dtype::fp8_e4m3, true, 128},
                    {"v", dtype::fp8_e4m3, true, 128},
                    {"k_scale", dtype::f32, true, 1},
                    {"v_scale", dtype::f32, true, 1}}}});
  CHECK(g.head_bytes(0) == 16 * (128 + 128 + 4 + 4));
  CHECK(g.segment_bytes(0) == 4 * 16 * 264);
  CHECK(g.plane_offset(0, 1, 0) == 4224);
  CHECK(g.plane_offset(0, 1, 3) == 4224 + 16 * (128 + 128 + 4));
  CHECK(g.row_bytes(0, 2) == 4);
}

TEST_CASE("geometry: layer groups may differ in shape") {
  geometry g(8, {{0, 2, 4, {{"k", dtype::f32, true, 32}, {"v", dtype::f32, true, 32}}},
                 {2, 1, 0, {{"latent", dtype::f32, false, 96}}}});
  CHECK(g.layers() == 3);
  CHECK(g.segment_bytes(1) == 8 * 4 * 64 * 4);
  CHECK(g.segment_bytes(2) == 8 * 96 * 4);
  CHECK(g.block_bytes() == 2 * 8192 + 3072);
  CHECK(g.layout().segments == std::vector<std::uint64_t>{8192, 8192, 3072});
  CHECK_THROWS_AS(g.segment_bytes(3), std::out_of_range);
}

TEST_CASE("geometry: one line describes it, and different shapes read differently") {
  CHECK(geometry::attention(2, 4, 32, dtype::f32).canonical() == "tokens=16;layers=0+2,heads=4,k:f32*32,v:f32*32");
  std::set<std::string> seen;
  for (std::uint32_t layers : {2u, 3u})
    for (std::uint32_t heads : {1u, 2u})
      for (auto type : {dtype::f32, dtype::bf16, dtype::f16})
        for (std::uint32_t tokens : {8u, 16u})
          seen.insert(geometry::attention(layers, heads, 32, type, tokens).canonical());
  CHECK(seen.size() == 24);
}

TEST_CASE("geometry: a window is part of the shape, takes no room, and is told only where there is one") {
  plane k{"k", dtype::f32, true, 32};
  geometry all(16, {{0, 2, 4, {k}}, {2, 1, 4, {k}}}), some(16, {{0, 2, 4, {k}}, {2, 1, 4, {k}, 1024}});
  CHECK(all.canonical() == "tokens=16;layers=0+2,heads=4,k:f32*32;layers=2+1,heads=4,k:f32*32");
  CHECK(some.canonical() == "tokens=16;layers=0+2,heads=4,k:f32*32;layers=2+1,heads=4,window=1024,k:f32*32");
  CHECK(all != some);
  CHECK(all.block_bytes() == some.block_bytes());
  CHECK(all.layout() == some.layout());
}

TEST_CASE("geometry: what can't be is refused by name") {
  auto message = [](std::uint32_t tokens, std::vector<layer_group> groups) -> std::string {
    try {
      geometry g(tokens, std::move(groups));
    } catch (const config_error& e) {
      return e.what();
    }
    return "accepted";
  };
  plane k{"k", dtype::f32, true, 32};
  CHECK(message(0, {{0, 1, 1, {k}}}) == "geometry: block_tokens is 0, not 1 to 65536");
  CHECK(message(16, {}) == "geometry: no layers");
  CHECK(message(16, {{1, 1, 1, {k}}}) == "geometry: a layer group begins at layer 1, expected layer 0");
  CHECK(message(16, {{0, 2, 1, {k}}, {1, 1, 1, {k}}}) == "geometry: a layer group begins at layer 1, expected layer 2");
  CHECK(message(16, {{0, 0, 1, {k}}}) == "geometry: the layer group at layer 0 is empty");
  CHECK(message(16, {{0, 5000, 1, {k}}}) == "geometry: more than 4096 layers");
  CHECK(message(16, {{0, 4294967295u, 1, {k}}}) == "geometry: more than 4096 layers");
  CHECK(message(16, {{0, 1, 1, {}}}) == "geometry: layer 0 has no planes");
  CHECK(message(16, {{0, 1, 0, {k}}}) == "geometry: layer 0: planes with heads but kv_heads is 0");
  CHECK(message(16, {{0, 1, 2, {{"c", dtype::f32, false, 8}}}}) == "geometry: layer 0: kv_heads without a plane");
  CHECK(message(16, {{0, 1, 1, {k, k}}}) == "geometry: layer 0: plane 'k' is there twice");
  CHECK(message(16, {{0, 1, 1, {{"k", dtype::f32, true, 0}}}}) == "geometry: layer 0: plane 'k' has dim 0");
  CHECK(message(16, {{0, 1, 1, {{"k", static_cast<dtype>(99), true, 1}}}}) ==
        "geometry: layer 0: plane 'k' has an unknown dtype");
  CHECK(message(16, {{0, 1, 1, {{"K;", dtype::f32, true, 1}}}}).starts_with("geometry: layer 0: plane name 'K;'"));
  CHECK(message(65536, {{0, 1, 4096, {{"k", dtype::f32, true, 4294967295u}}}})
            .starts_with("geometry: layer 0 needs more"));
  CHECK(
      message(16, {{0, 1, 4294967295u, {{"k", dtype::f32, true, 4096}}}}).starts_with("geometry: layer 0 needs more"));
  CHECK(message(1, {{0, 1, 1, {{"data", dtype::u8, true, 3}, {"scale", dtype::f32, true, 1}}}}).find("not aligned") !=
        std::string::npos);
  CHECK(
      message(1, {{0, 1, 2, {{"scale", dtype::f32, true, 1}, {"data", dtype::u8, true, 3}}}}).find("a head takes 7") !=
      std::string::npos);
}

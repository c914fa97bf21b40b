#include "cluster/part_note.hpp"

#include <doctest/doctest.h>

#include <random>

#include "cluster/part_sending.hpp"
#include "cokv/runtime/error.hpp"

using namespace cokv;
using namespace cokv::cluster;

namespace {

const kv_wire wire{.layers = 4, .kv_heads = 2, .head_dim = 8, .block_tokens = 16, .type = dtype::f32};

part_note landing() {
  return {.kind = part_note::what::land,
          .task = 0xffff'ffff'ffff'ffffu,
          .land = part_note::landing{.id = "r-1.0",
                                     .attempt = 2,
                                     .from = topology(2, 2, 0, {0, 1}),
                                     .sender = {4, 2, 8, 32, dtype::bf16},
                                     .receiver = wire,
                                     .tokens = 40,
                                     .first = 16,
                                     .blocks = {7, 0, 4'294'967'295u}}};
}

part_note sending() {
  ticket t{.id = "r-1.0", .attempt = 2, .topology = topology(1, 2), .wire = wire};
  for (std::uint32_t n = 0; n < 2; ++n)
    t.parts.push_back({.life = "w" + std::to_string(n), .links = {"tcp://h:1"}, .legs = {{1, n, 3, {4, 5, 6}}}});
  t.tokens = 20;
  t.blocks = {{1, 1}, {2, 1}};
  t.lease = std::chrono::seconds(1);
  return {.kind = part_note::what::send, .task = 3, .send = t};
}

error_code read(std::string_view text) { return read_note(std::as_bytes(std::span(text))).error(); }

}  // namespace

TEST_CASE("part note: each kind is read as it was written") {
  auto r = read_note(encode(landing()));
  REQUIRE(r.has_value());
  CHECK(r->kind == part_note::what::land);
  CHECK(r->task == landing().task);
  REQUIRE(r->land.has_value());
  CHECK(r->land->id == "r-1.0");
  CHECK(r->land->attempt == 2);
  CHECK(r->land->from == topology(2, 2, 0, {0, 1}));
  CHECK(r->land->sender == landing().land->sender);
  CHECK(r->land->receiver == wire);
  CHECK(r->land->tokens == 40);
  CHECK(r->land->first == 16);
  CHECK(r->land->blocks == landing().land->blocks);

  r = read_note(encode(sending()));
  REQUIRE(r.has_value());
  REQUIRE(r->send.has_value());
  CHECK(r->send->parts.size() == 2);
  CHECK(r->send->parts[1].legs == sending().send->parts[1].legs);

  r = read_note(encode({.kind = part_note::what::end, .task = 9}));
  REQUIRE(r.has_value());
  CHECK(r->kind == part_note::what::end);
  CHECK(r->task == 9);

  r = read_note(encode({.kind = part_note::what::ready, .task = 9}));
  REQUIRE(r.has_value());
  CHECK(!r->part.has_value());
  r = read_note(encode({.kind = part_note::what::ready, .task = 9, .part = sending().send->parts[0]}));
  REQUIRE(r.has_value());
  REQUIRE(r->part.has_value());
  CHECK(r->part->life == "w0");
  CHECK(r->part->links == std::vector<std::string>{"tcp://h:1"});

  r = read_note(encode({.kind = part_note::what::kept, .task = 9, .tokens = 32}));
  REQUIRE(r.has_value());
  CHECK(r->tokens == 32);

  for (error_code why : {error_code(), make_error_code(errc::stale_reference)}) {
    r = read_note(encode({.kind = part_note::what::over, .task = 9, .tokens = 5, .bytes = 1ull << 40, .code = why}));
    REQUIRE(r.has_value());
    CHECK(r->code == why);
    CHECK(r->tokens == 5);
    CHECK(r->bytes == 1ull << 40);
  }
}

TEST_CASE("part note: what is none breaks the protocol; damaged ones are refused, or are notes") {
  for (std::string_view text : {"", "{}", "[]", R"({"task":1})", R"({"is":"end"})", R"({"task":1,"is":"end","more":1})",
                                R"({"task":-1,"is":"end"})", R"({"task":1,"is":"begin"})", R"({"task":1,"is":"land"})",
                                R"({"task":1,"is":"kept","tokens":16777217})", R"({"task":1,"is":"send","ticket":{}})",
                                R"({"task":1,"is":"over","tokens":1,"bytes":1})", R"({"task":1,"is":7})"})
    CHECK_MESSAGE(read(text) == errc::protocol, text);
  std::mt19937_64 random(1);
  for (const auto& note : {landing(), sending()}) {
    const auto whole = encode(note);
    for (std::size_t n = 0; n < whole.size(); ++n)
      CHECK(read_note(std::span(whole).first(n)).error() == errc::protocol);
    for (int i = 0; i < 3000; ++i) {
      auto damaged = whole;
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
      const auto r = read_note(damaged);
      if (r && r->land) CHECK(r->land->blocks.size() <= r->land->tokens);
      if (r && r->send) CHECK(r->send->parts.size() == r->send->topology.workers());
    }
  }
}

// Blocks are another's when its leader lets them go: other workers read theirs until they have said that they are over.
TEST_CASE(
    "told parts: a prompt that gave way keeps its blocks until it is released, and nothing more of it is told to "
    "anybody") {
  asio::io_context context;
  cluster::told_parts told(context.get_executor(), 2, 7);
  const auto alive = std::make_shared<int>();
  told.begun({.memory = {}, .blocks = {1, 2}, .held = {}, .alive = alive}, 5);
  told.layer(0, {5, 3}, event());
  CHECK(told.parts.size() == 3);
  CHECK(told.number() == 7);
  told.preempted();
  CHECK(told.lost);
  CHECK(told.parts.empty());
  CHECK(told.number() == 0);
  CHECK(alive.use_count() == 2);
  told.layer(1, {5, 3}, event());
  told.begun({.memory = {}, .blocks = {3}, .held = {}, .alive = nullptr}, 0);
  CHECK(told.parts.empty());
  CHECK(told.where->blocks == std::vector<block_index>{1, 2});
  told.release();
  CHECK(alive.use_count() == 1);
}

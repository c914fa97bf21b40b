#include "plan/binding.hpp"

#include <doctest/doctest.h>

using namespace cokv;
using namespace cokv::plan;

namespace {

workload::request_record answered(double ttft, double total, std::uint32_t tokens) {
  workload::request_record r;
  r.sent = true, r.ttft_ms = ttft, r.total_ms = total, r.output_tokens = tokens, r.gaps_ms.resize(tokens - 1);
  return r;
}

constexpr workload::slo bounds{.ttft_ms = 100, .tpot_ms = 10};

}  // namespace

TEST_CASE("binding: what kept most of those that did not meet the bounds") {
  const auto good = answered(50, 140, 10), late = answered(150, 240, 10), slow = answered(50, 320, 10);
  CHECK(binding_of({.records = {good, good}, .losses = {}, .journeys = {}}, bounds) == binding::nothing);
  CHECK(binding_of({.records = {good, late}, .losses = {}, .journeys = {}}, bounds) == binding::ttft);
  CHECK(binding_of({.records = {good, slow}, .losses = {}, .journeys = {}}, bounds) == binding::tpot);
  // By where the time went.
  CHECK(binding_of({.records = {late}, .losses = {}, .journeys = {{.room_ms = 100, .prompt_ms = 50}}}, bounds) ==
        binding::memory);
  CHECK(binding_of({.records = {late}, .losses = {}, .journeys = {{.room_ms = 50, .prompt_ms = 100}}}, bounds) ==
        binding::ttft);
  CHECK(binding_of({.records = {slow}, .losses = {}, .journeys = {{.kv_ms = 180}}}, bounds) == binding::link);
  CHECK(binding_of({.records = {slow}, .losses = {}, .journeys = {{.kv_ms = 170}}}, bounds) == binding::tpot);
  // The most frequent one.
  CHECK(binding_of({.records = {late, slow, slow, good, good, good}, .losses = {}, .journeys = {}}, bounds) ==
        binding::tpot);
}

TEST_CASE("binding: who was refused was late, and who was given up counts for nothing") {
  auto refused = answered(50, 140, 10), given_up = answered(150, 240, 10);
  refused.error = "full", given_up.stopped = true;
  CHECK(binding_of({.records = {refused}, .losses = {}, .journeys = {}}, bounds) == binding::ttft);
  CHECK(binding_of({.records = {given_up}, .losses = {}, .journeys = {}}, bounds) == binding::nothing);
}

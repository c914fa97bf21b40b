// A prompt that is computed in one element type and answered in another: its KV converted, as it is on its way between
// workers, gives the reference's logits within 2 % of the largest, as the other type alone does.
#include <doctest/doctest.h>

#include "cokv/kvstream/convert.hpp"
#include "engine/golden.hpp"
#include "engine/model_bench.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("every family goes on from KV of another element type within 2 % of the reference's logits") {
  float most = 0;
  for (auto& family : families())
    for (auto [from, to] : {std::pair{dtype::f32, dtype::bf16}, {dtype::bf16, dtype::f32}}) {
      auto computes = load_model(family.folder, {.compute = from}),
           answers = load_model(family.folder, {.compute = to});
      for (auto& c : family.cases) {
        INFO(family.name, " from ", to_string(from), " to ", to_string(to), ", a prompt of ", c.prompt.size());
        const auto last = static_cast<std::uint32_t>(c.prompt.size() - 1);
        model_bench a(computes, 16), b(answers, 16);
        for (auto* pool : {&a.kv, &b.kv}) std::memset(pool->memory().data(), 0, pool->memory().size());
        if (last > 0) (void)a.prefill({c.prompt.begin(), c.prompt.begin() + last}, 1024);
        REQUIRE(convert(a.kv.memory().bytes(), from, b.kv.memory().bytes(), to));
        b.run({{b.table(c.prompt.size()), last, {c.prompt.back()}, true}});
        const auto off = distance(b.step->logits_of(0), c.logits);
        CHECK(off < 0.02f);
        most = std::max(most, off);
      }
    }
  MESSAGE("at most ", most, " of the largest logit");
}

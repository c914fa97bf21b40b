// The judge over UCX, with links that break now and then.
#include "kvstream/hash/hash_serving.hpp"
#include "kvstream/small_models.hpp"
#include "linked.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("ucx: hash model: answers are right, or given up on with an error, and every block comes back") {
  std::size_t answered = 0, failed = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    hash_serving s(small_models(4)[seed % 4], seed);
    s.breaks = true;
    hash_place at{.listen = "ucx://localhost:0", .link = {.credits = 8, .messages = 4, .chunk = 4096}};
    run_body(hash_both(s, at, at));
    answered += s.answered, failed += s.failed_attempts;
  }
  CHECK(answered > 16);
  CHECK(failed > 0);
}

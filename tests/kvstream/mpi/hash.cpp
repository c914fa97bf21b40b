// The judge over MPI: rank 1 computes prompts, rank 0 answers them, over links that break now and then.
#include "kvstream/hash/hash_serving.hpp"
#include "kvstream/small_models.hpp"
#include "ranks.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// Both listen before anybody leaves.
awaitable<void> answer(hash_serving& s, hash_place at) {
  co_await hash_decode(s, at);
  co_await hash_stop(at);
  check_end(s);
}

}  // namespace

TEST_CASE("mpi: hash model: answers are right, or given up on with an error, and every block comes back") {
  std::size_t answered = 0, failed = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    hash_serving s(small_models(4)[seed % 4], seed);
    s.breaks = true;
    s.attempts = 100;  // the other rank may not listen yet
    hash_place at{.listen = "mpi://", .connect = "mpi://1", .link = {.credits = 8, .messages = 4, .chunk = 4096}};
    run_body(own_rank() == 0 ? answer(s, at) : hash_prefill(s, at));
    answered += s.answered, failed += s.failed_attempts;
  }
  if (own_rank() == 0) CHECK(answered == 32);
  if (own_rank() == 0) CHECK(failed > 0);
}

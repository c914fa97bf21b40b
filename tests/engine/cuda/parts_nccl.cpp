// Ranks of a model that add up on their GPUs, on stand-ins for CUDA, cuBLASLt and NCCL: the whole's answers, clean ends, and links
// where NCCL can't.
#include "engine/cuda/part_answers.hpp"
#include "engine/cuda/some_families.hpp"
#include "engine/stage_fixture.hpp"
#include "support/fake_cublaslt.hpp"
#include "support/fake_cuda.hpp"
#include "support/fake_engine_kernels.hpp"
#include "support/fake_nccl.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// Several devices in one context.
struct gpus {
  asio::io_context context{1};
  std::vector<device> all;

  explicit gpus(int n) {
    for (int i = 0; i < n; ++i) all.push_back(open_device(context.get_executor(), "cuda:" + std::to_string(i)).value());
  }
  void run() {
    context.restart();
    cokv::run(context);
  }
};

template <class F>
void on_gpus(int n, F f) {
  [[maybe_unused]] static const bool known = (fake_cuda::know_engine_kernels(), true);
  fake_cublaslt::reset();
  const auto products = fake_cublaslt::table();
  const auto sums = fake_nccl::table();
  kernel::cublaslt_api::stand_in(&products);
  cokv::detail::nccl_api::stand_in(&sums);
  std::mt19937 random(std::random_device{}());
  for (std::uint64_t round = 0; round < 8; ++round) {
    const auto seed = random();
    CAPTURE(seed);
    std::mt19937 now(seed);
    fake_cuda::reset({.mode = fake_cuda::mode::threaded, .devices = n, .seed = seed, .max_delay = 3});
    fake_nccl::reset({.max_polls = static_cast<int>(now() % 4)});
    {
      gpus m(n);
      f(m, now);
    }
    const auto wrong = fake_cuda::violations();
    CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
    CHECK(fake_nccl::live_communicators() == 0);
    CHECK(fake_cuda::live_streams() == 0);
    CHECK(fake_cuda::live_events() == 0);
    CHECK(fake_cuda::live_allocations() == 0);
  }
  cokv::detail::nccl_api::stand_in(nullptr);
  CHECK(fake_cublaslt::live() == 0);
}

// Worker n computes on device gpu_of(n).
template <class F>
part_workers workers_of(gpus& m, const golden& family, dtype type, topology split, engine_options o, F gpu_of,
                        bool invariant = false) {
  return part_workers(
      m.context.get_executor(), [&m, gpu_of](std::uint32_t n) { return m.all.at(gpu_of(n)); }, split,
      [&m, &family, type, gpu_of, invariant](model_part p) {
        const auto where = m.all.at(gpu_of(p.split.number(p.who)));
        return load_model(family.folder,
                          {.compute = type, .where = where, .batch_invariant = invariant, .part = std::move(p)});
      },
      o);
}

// Serves all of them; how the ranks added up.
std::string sums_of(gpus& m, part_workers& w, const std::vector<generation_request>& requests,
                    std::vector<answer>& got) {
  std::string by;
  asio::co_spawn(
      m.context,
      [&]() -> awaitable<void> {
        const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          co_await w.join_all(group);
          for (std::size_t i = 0; i < requests.size(); ++i)
            group.spawn(collect(w.leader->submit(requests[i]).value(), got[i]));
          co_await w.leader->async_drain(asio::as_tuple(asio::deferred));
          by = w.leader->counters().sums_by;
          for (auto& one : w.others) CHECK(one->sums_by() == by);
          w.stop();
        });
        CHECK(!v.error());
      },
      asio::detached);
  m.run();
  CHECK(w.leader->counters().blocks_in_use == 0);
  return by;
}

}  // namespace

TEST_CASE("fake_cuda parts: ranks with a GPU each add up there, and say what the whole says") {
  on_gpus(4, [](gpus& m, std::mt19937& random) {
    some_families(false, [&](const golden& family, dtype type) {
      const std::uint32_t stages = 1 + random() % 2;
      const auto requests = requests_of(family, random);
      const auto want = whole_answers(family, type, requests);
      std::vector<answer> got(requests.size());
      auto w =
          workers_of(m, family, type, topology(stages, 2), some_options(random), [](std::uint32_t n) { return n; });
      CHECK(sums_of(m, w, requests, got) == "nccl");
      check_same(got, want, type);
      CHECK(fake_cuda::calls("ncclAllReduce") > 10);
    });
  });
}

TEST_CASE("fake_cuda parts: ranks on one GPU add up over their links") {
  on_gpus(2, [](gpus& m, std::mt19937& random) {
    some_families(false, [&](const golden& family, dtype type) {
      const auto requests = requests_of(family, random);
      const auto want = whole_answers(family, type, requests);
      std::vector<answer> got(requests.size());
      auto w = workers_of(m, family, type, topology(1, 2), some_options(random), [](std::uint32_t) { return 1; });
      CHECK(sums_of(m, w, requests, got) == "links");
      check_same(got, want, type);
      CHECK(fake_cuda::calls("ncclAllReduce") == 0);
    });
  });
}

TEST_CASE("fake_cuda parts: more than two ranks add up in one order where answers may not depend on others") {
  on_gpus(4, [](gpus& m, std::mt19937& random) {
    const auto& family = *std::ranges::find(families(), "gpt2", &golden::name);
    const bool invariant = random() % 2;
    const auto requests = requests_of(family, random);
    std::vector<answer> got(requests.size());
    const auto each = [](std::uint32_t n) { return n; };
    auto w = workers_of(m, family, dtype::f32, topology(1, 4), some_options(random), each, invariant);
    CHECK(sums_of(m, w, requests, got) == (invariant ? "links" : "nccl"));
    for (auto& a : got) CHECK(a.ended == asio::error::eof);
  });
}

TEST_CASE(
    "fake_cuda parts: a rank that is lost in the middle ends the requests, and nothing of NCCL is left; then they join "
    "again") {
  on_gpus(2, [](gpus& m, std::mt19937& random) {
    some_families(false, [&](const golden& family, dtype type) {
      const auto requests = requests_of(family, random);
      const auto want = whole_answers(family, type, requests);
      auto w = workers_of(m, family, type, topology(1, 2), some_options(random), [](std::uint32_t n) { return n; });
      std::vector<answer> cut(requests.size());
      const auto which = random();
      const auto steps = random() % 8;
      asio::co_spawn(
          m.context,
          [&]() -> awaitable<void> {
            (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
              co_await w.join_all(group);
              for (std::size_t i = 0; i < requests.size(); ++i)
                group.spawn(collect(w.leader->submit(requests[i]).value(), cut[i]));
              while (w.others[0]->steps() < steps)
                co_await clock::of(m.context.get_executor())
                    .async_wait_for(std::chrono::microseconds(200), asio::deferred);
              w.cut(which);
            });
          },
          asio::detached);
      m.run();
      for (auto& a : cut) CHECK(a.ended);
      CHECK(fake_nccl::live_communicators() == 0);
      CHECK(w.leader->counters().blocks_in_use == 0);
      CHECK(w.lost.size() == 1);

      std::vector<answer> got(requests.size());
      CHECK(sums_of(m, w, requests, got) == "nccl");
      check_same(got, want, type);
    });
  });
}

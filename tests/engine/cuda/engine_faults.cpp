// What a device may refuse while an engine loads and runs, on the stand-ins for CUDA and cuBLASLt.
#include <cublas_v2.h>

#include "engine/cuda/some_families.hpp"
#include "engine/generate_fixture.hpp"
#include "support/fake_cublaslt.hpp"
#include "support/fake_cuda.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::vector<generation_request> requests_of(const golden& family) {
  std::vector<generation_request> out;
  for (auto& c : family.cases) {
    out.push_back({.prompt = c.prompt, .max_tokens = 5, .sampling = {.temperature = 0}, .ignore_end_tokens = true});
    out.push_back(out.back());
    out.back().sampling = {.temperature = 1, .frequency_penalty = 0.5f, .seed = 3};
    out.back().logprobs = 1;
  }
  return out;
}

std::vector<answer> ask(cuda_machine& m, engine& serves, std::vector<generation_request> requests) {
  std::vector<answer> out(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (auto g = serves.submit(std::move(requests[i])))
      asio::co_spawn(m.context, collect(std::move(*g), out[i]), asio::detached);
    else
      out[i].ended = g.error();
  m.run();
  return out;
}

std::vector<token_id> first_tokens(const golden_case& c) { return {c.tokens.begin(), c.tokens.begin() + 5}; }

}  // namespace

TEST_CASE(
    "cuda engines: a call that fails ends the requests of its step, and those that come next are answered right") {
  std::size_t ended = 0, unharmed = 0;
  with_decoders([&](cuda_machine& m, std::mt19937& random, bool) {
    const auto& family = families()[random() % families().size()];
    const auto model = load_model(family.folder, {.compute = dtype::f32, .where = m.device});
    engine serves(m.context.get_executor(), m.device, model, std::nullopt,
                  {.kv_blocks = 64, .async_scheduling = random() % 2 == 0});
    const std::pair<const char*, int> calls[] = {{"cudaMalloc", cudaErrorMemoryAllocation},
                                                 {"cudaHostRegister", cudaErrorMemoryAllocation},
                                                 {"cudaLaunchKernel", cudaErrorInvalidValue},
                                                 {"cudaMemcpyAsync", cudaErrorInvalidValue},
                                                 {"cublasLtMatmul", CUBLAS_STATUS_INTERNAL_ERROR},
                                                 {"cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED}};
    const auto [call, error] = calls[random() % std::size(calls)];
    const auto k = 1 + random() % (std::string_view(call) == "cudaLaunchKernel" ? 100 : 8);
    CAPTURE(std::string(call));
    CAPTURE(k);
    CAPTURE(family.name);
    fake_cuda::fail_call(call, k, error);
    const auto first = ask(m, serves, requests_of(family));
    for (std::size_t i = 0; i < first.size(); ++i) {
      const bool whole = first[i].ended == asio::error::eof;
      whole ? ++unharmed : ++ended;
      CHECK(first[i].ended);
      if (whole && i % 2 == 0) CHECK(first[i].tokens == first_tokens(family.cases[i / 2]));
    }
    fake_cuda::fail_call(call, 1u << 30, error);
    const auto second = ask(m, serves, requests_of(family));
    for (std::size_t i = 0; i < second.size(); i += 2) {
      CHECK(second[i].ended == asio::error::eof);
      CHECK(second[i].tokens == first_tokens(family.cases[i / 2]));
    }
    CHECK(serves.counters().blocks_in_use == 0);
  });
  CHECK(ended > 20);
  CHECK(unharmed > 20);
}

TEST_CASE("cuda engines: steps of a shape that came before are replayed, and what can't be captured is enqueued") {
  std::size_t replayed = 0;
  with_decoders([&](cuda_machine& m, std::mt19937& random, bool) {
    const auto& family = families()[random() % families().size()];
    const auto model = load_model(family.folder, {.compute = dtype::f32, .where = m.device});
    engine serves(m.context.get_executor(), m.device, model, std::nullopt,
                  {.kv_blocks = 64, .async_scheduling = random() % 2 == 0});
    auto requests = [&] {
      std::vector<generation_request> out;
      for (auto& c : family.cases)
        out.push_back({.prompt = c.prompt, .max_tokens = 12, .sampling = {.temperature = 0}, .ignore_end_tokens = true});
      return out;
    };
    const std::pair<const char*, int> calls[] = {{"", 0},
                                                 {"cudaStreamBeginCapture", cudaErrorIllegalState},
                                                 {"cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated},
                                                 {"cudaGraphInstantiate", cudaErrorMemoryAllocation},
                                                 {"cudaGraphLaunch", cudaErrorInvalidValue}};
    const auto [call, error] = calls[random() % std::size(calls)];
    CAPTURE(std::string(call));
    CAPTURE(family.name);
    if (*call) fake_cuda::fail_call(call, 1, error);
    const bool whole = std::string_view(call) != "cudaGraphLaunch";
    for (int turn = 0; turn < 2; ++turn) {
      const auto got = ask(m, serves, requests());
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (!whole && turn == 0 && got[i].ended != asio::error::eof) continue;
        CHECK(got[i].ended == asio::error::eof);
        CHECK(got[i].tokens == std::vector<token_id>(family.cases[i].tokens.begin(), family.cases[i].tokens.begin() + 12));
      }
    }
    const auto launches = fake_cuda::calls("cudaGraphLaunch"), made = fake_cuda::calls("cudaGraphInstantiate");
    replayed += launches;
    CHECK(launches > 0);
    CHECK(made <= 12);
    CHECK(serves.counters().blocks_in_use == 0);
  });
  CHECK(replayed > 100);
}

// What is left of a lost device goes when it is opened again: nothing is counted here.
TEST_CASE("cuda engines: a device that is lost in a step ends every request with its error") {
  with_decoders([](cuda_machine&, std::mt19937&, bool) {});  // the stand-ins are known
  const auto api = fake_cublaslt::table();
  kernel::cublaslt_api::stand_in(&api);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    fake_cuda::reset({.mode = fake_cuda::mode::threaded, .seed = seed, .max_delay = 3});
    {
      cuda_machine m;
      m.device = open_device(m.context.get_executor(), "cuda:0").value();
      const auto& family = families()[seed % families().size()];
      const auto model = load_model(family.folder, {.compute = dtype::f32, .where = m.device});
      engine serves(m.context.get_executor(), m.device, model, std::nullopt,
                    {.kv_blocks = 64, .async_scheduling = seed % 2 == 0});
      fake_cuda::lose_after(1 + random() % 200, cudaErrorIllegalAddress);
      for (auto& a : ask(m, serves, requests_of(family))) {
        CHECK(a.ended);
        CHECK(a.ended != asio::error::eof);
      }
      CHECK(fake_cuda::device_is_lost());
      CHECK(!serves.submit(requests_of(family)[0]));
    }
    CHECK(fake_cuda::violations().empty());
  }
  fake_cuda::reset();
}

TEST_CASE("cuda engines: what is missing when a model is loaded is an error that names the device") {
  auto error_of = [](cuda_machine& m) -> std::string {
    try {
      load_model(families()[0].folder, {.where = m.device});
    } catch (const config_error& e) {
      return e.what();
    }
    return {};
  };
  with_decoders([&](cuda_machine& m, std::mt19937& random, bool) {
    const std::pair<const char*, int> calls[] = {{"cudaMalloc", cudaErrorMemoryAllocation},
                                                 {"cudaLibraryLoadData", cudaErrorNoKernelImageForDevice},
                                                 {"cudaMemcpyAsync", cudaErrorInvalidValue},
                                                 {"cublasLtCreate", CUBLAS_STATUS_NOT_INITIALIZED}};
    const auto [call, error] = calls[random() % std::size(calls)];
    CAPTURE(std::string(call));
    kernel::forget_device_kernels();
    fake_cuda::fail_call(call, 1, error);
    CHECK(error_of(m).starts_with("device cuda:0: "));
    fake_cuda::fail_call(call, 1u << 30, error);
    CHECK(error_of(m).empty());
  });
}

// Real models in parts that send prompts to real models in other parts, over links of this machine: the tokens of one process.
#include <map>

#include "apps/cluster/streaming_parts.hpp"
#include "engine/four_layers.hpp"
#include "engine/golden.hpp"
#include "support/remove_folder.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

using part_maker = part_workers::part_maker;

part_maker parts_of(const std::filesystem::path& folder) {
  return [folder](model_part p) { return load_model(folder, {.compute = dtype::f32, .part = std::move(p)}); };
}

parts_side side_of(asio::any_io_executor ex, std::string name, topology split, const part_maker& make, engine_options o,
                   std::string_view door) {
  const auto url = [door = std::string(door)](std::uint32_t n) {
    return std::pair(door.starts_with("shm") ? door + std::to_string(n) : door, std::string());
  };
  return {
      ex, "cpu", std::move(name), std::move(split), make, std::move(o), {}, door.empty() ? parts_side::urls_of() : url};
}

struct pair_of_sides {
  topology from, to;
  part_maker make;
  engine_options prefill, decode;
  std::string door = "tcp://127.0.0.1:0";
};

// All requests at once; what each is answered.
std::vector<std::vector<token_id>> answers_between(const pair_of_sides& p,
                                                   const std::vector<generation_request>& requests) {
  std::vector<std::vector<token_id>> out(requests.size());
  run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    parts_side from = side_of(ex, "prefill", p.from, p.make, p.prefill, {});
    parts_side to = side_of(ex, "decode", p.to, p.make, p.decode, p.door);
    const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
      to.open_doors(workers);
      co_await from.join(workers);
      co_await to.join(workers);
      const auto all = co_await with(task_group{}, [&](task_group& asking) {
        for (std::size_t i = 0; i < requests.size(); ++i)
          asking.spawn([&, i]() -> awaitable<void> {
            const auto got = co_await computed_elsewhere(from, to, requests[i], "r-" + std::to_string(i), 0);
            CHECK(!got.not_sent);
            CHECK(got.sent.sent_bytes > 0);
            REQUIRE(got.answer.has_value());
            out[i] = *got.answer;
          });
      });
      CHECK(static_cast<bool>(all));
      for (auto* side : {&from, &to}) {
        co_await side->w.leader->async_drain(asio::as_tuple(asio::deferred));
        side->stop();
        side->close();
      }
    });
    CHECK(static_cast<bool>(v));
    from.check_end();
    to.check_end();
  });
  return out;
}

// Greedy, sampled, with penalties. Tokens below `vocab`.
std::vector<generation_request> three_requests(token_id vocab) {
  std::vector<generation_request> requests;
  for (std::uint64_t i = 0; i < 3; ++i) {
    generation_request r{.max_tokens = 12, .ignore_end_tokens = true};
    for (token_id t = 0; t < 40 + 23 * static_cast<token_id>(i); ++t)
      r.prompt.push_back(3 + (t * 37 + static_cast<token_id>(i) * 11) % (vocab - 3));
    r.sampling = {.temperature = i == 1 ? 0.9f : 0.f, .top_p = 0.9f, .seed = i};
    if (i == 2) r.sampling.repetition_penalty = 1.3f, r.sampling.frequency_penalty = 0.4f;
    requests.push_back(std::move(r));
  }
  return requests;
}

void all_pairs_answer_as_one_process(const part_maker& make, token_id vocab) {
  const auto requests = three_requests(vocab);
  std::vector<std::vector<token_id>> want;
  run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    engine whole(ex, open_device(ex, "cpu", {.threads = 1}).value(), make({}), std::nullopt, {});
    for (auto& r : requests) {
      auto g = whole.submit(r).value();
      want.emplace_back();
      while (auto piece = co_await g.async_next(as_result)) want.back().push_back(piece->token);
    }
  });
  std::size_t pairs = 0;
  for (std::uint32_t n : {1u, 2u, 4u})
    for (std::uint32_t m : {1u, 2u})
      for (std::uint32_t k : {1u, 2u, 4u})
        for (std::uint32_t l : {1u, 2u}) {
          INFO("pp", n, "xtp", m, " to pp", k, "xtp", l);
          // Chunks of a prompt, and blocks of other sizes here and there.
          CHECK(answers_between({.from = topology(n, m),
                                 .to = topology(k, l),
                                 .make = make,
                                 .prefill = {.kv_blocks = 100, .max_batched_tokens = 32},
                                 .decode = {.kv_blocks = 100, .block_tokens = ++pairs % 3 == 0 ? 24u : 16u}},
                                requests) == want);
        }
  CHECK(pairs == 36);
}

}  // namespace

TEST_CASE(
    "topologies: prompts at any of {1, 2, 4} stages of {1, 2} ranks, answers at any other, are those of one process") {
  all_pairs_answer_as_one_process(parts_of(source_dir() / "models/tiny-kjv"), 1900);
}

TEST_CASE("topologies: and so with every family") {
  for (auto& family : family_folders()) {
    INFO(family);
    all_pairs_answer_as_one_process(four_layers(family), 320);
  }
}

TEST_CASE("topologies: every family's prompts go from parts to other parts, over tcp and shared memory") {
  char text[] = "/tmp/cokv-test-XXXXXX";
  REQUIRE(mkdtemp(text));
  const std::shared_ptr<void> at_end(nullptr, [&](void*) { remove_folder(text); });
  std::size_t number = 0;
  for (auto& family : families())
    for (auto [from, to] : {std::pair{topology(2, 1), topology(1, 2)}, {topology(1, 2), topology(3, 1)}}) {
      INFO(family.name, ", ", from.text(), " to ", to.text());
      std::vector<generation_request> requests;
      std::vector<std::vector<token_id>> want;
      for (auto& c : family.cases) {
        requests.push_back({.prompt = c.prompt,
                            .max_tokens = static_cast<std::uint32_t>(c.tokens.size()),
                            .sampling = {.temperature = 0},
                            .ignore_end_tokens = true});
        want.push_back(c.tokens);
      }
      const bool shared = ++number % 2 == 0;
      CHECK(answers_between(
                {.from = from,
                 .to = to,
                 .make = parts_of(family.folder),
                 .prefill = {.kv_blocks = 200, .max_batched_tokens = 24},
                 .decode = {.kv_blocks = 200, .kv_memory = shared ? memory_kind::shared : memory_kind::device},
                 .door =
                     shared ? "shm://" + std::string(text) + "/" + std::to_string(number) + "-" : "tcp://127.0.0.1:0"},
                requests) == want);
    }
}

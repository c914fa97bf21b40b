// Answers whose prompt was computed elsewhere: what their reader gets, when, and what becomes of their blocks.
#include "engine/arrival_by_hand.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t bt = 16;

void once(const co_body& body) { co_test(body, {.real = false, .seeds = 1}); }

std::pair<generation, arrival> received(engine& e, generation_request r) {
  auto both = e.receive(std::move(r));
  REQUIRE(both.has_value());
  return std::move(*both);
}

}  // namespace

TEST_CASE("arrival: the answer is the model's, its first token comes at once, and no block is left") {
  for (std::size_t size : {1u, 15u, 16u, 17u, 100u})
    for (std::uint32_t n : {1u, 2u, 40u})
      once([&](asio::any_io_executor ex) -> awaitable<void> {
        CAPTURE(size);
        CAPTURE(n);
        toy_engine e(ex, {});
        const auto prompt = toy_prompt(size, 1);
        auto [g, a] = received(e.run, toy_request(prompt, n));
        const auto room = co_await fill_room(e.run, a, prompt);
        CHECK(room.first == 0);
        CHECK(room.tokens == size);
        CHECK(room.blocks.size() == (size + bt - 1) / bt);
        REQUIRE(room.refs.size() == room.blocks.size());
        for (std::size_t i = 0; i < room.refs.size(); ++i) {
          CHECK(room.refs[i].index == room.blocks[i]);
          CHECK(e.run.pool().current(room.refs[i]));
        }
        CHECK(!a.first(toy_next(prompt)));
        const auto piece = co_await g.async_next(asio::deferred);
        CHECK(piece.token == toy_next(prompt));
        CHECK((piece.reason == finish_reason::length) == (n == 1));
        CHECK(a.over() == (n == 1));
        a.complete();
        const auto rest = co_await read_all(std::move(g));
        auto want = toy_answer(prompt, n);
        want.erase(want.begin());
        CHECK(rest.tokens == want);
        CHECK(rest.ended == asio::error::eof);
        CHECK(rest.report.generated_tokens == n);
        CHECK(rest.report.cached_tokens == 0);
        co_await e.drain();
        CHECK(e.run.counters().steps == n - 1);  // nothing of the prompt was computed
        CHECK(e.run.counters().blocks_in_use == 0);
      });
}

TEST_CASE("arrival: one wrong byte of what came makes another answer") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    toy_engine e(ex, {});
    const auto prompt = toy_prompt(50, 1);
    auto [g, a] = received(e.run, toy_request(prompt, 8));
    const auto room = co_await fill_room(e.run, a, prompt);
    *(e.run.pool().memory().data() + e.run.pool().offset(2, room.blocks[3])) ^= std::byte(1);  // token 48
    CHECK(!a.first(toy_next(prompt)));
    a.complete();
    CHECK((co_await read_all(std::move(g))).tokens != toy_answer(prompt, 8));
  });
}

TEST_CASE("arrival: what was here is not asked for, be it all of it; and what came is here for others") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    toy_engine e(ex, {});
    auto longer = toy_prompt(3 * bt + 5, 1);
    const std::vector<token_id> whole(longer.begin(), longer.begin() + 3 * bt);
    {
      auto [g, a] = received(e.run, toy_request(longer, 4));
      CHECK((co_await fill_room(e.run, a, longer)).first == 0);
      CHECK(!a.first(toy_next(longer)));
      a.complete();
      CHECK((co_await read_all(std::move(g))).tokens == toy_answer(longer, 4));
    }
    for (const auto& prompt : {whole, longer}) {
      auto [g, a] = received(e.run, toy_request(prompt, 30));
      const auto room = co_await a.async_room(asio::deferred);
      CHECK(room.first == 3 * bt);
      fill_toy_kv(e.run.pool(), room.blocks, prompt, room.first, room.tokens);
      CHECK(!a.first(toy_next(prompt)));
      a.complete();
      const auto got = co_await read_all(std::move(g));
      CHECK(got.tokens == toy_answer(prompt, 30));
      CHECK(got.report.cached_tokens == std::min<std::size_t>(3 * bt, prompt.size() - 1));
    }
    const auto computed = co_await read_all(e.run.submit(toy_request(longer, 4)).value());
    CHECK(computed.report.cached_tokens == 3 * bt);
    CHECK(computed.tokens == toy_answer(longer, 4));
    auto salted = toy_request(longer, 4);
    salted.salt = "another tenant's";
    auto [g, a] = received(e.run, std::move(salted));
    CHECK((co_await a.async_room(asio::deferred)).first == 0);
  });
}

TEST_CASE("arrival: sampling that looks back finds the token that was sampled elsewhere") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    toy_engine e(ex, {});
    const auto prompt = toy_prompt(50, 3);
    auto request = toy_request(prompt, 60);
    request.sampling = {.temperature = 1, .repetition_penalty = 1.5f, .frequency_penalty = 1, .seed = 5};
    request.continues = 7;
    request.logprobs = 2;
    const auto want = (co_await read_all(e.run.submit(request).value())).tokens;
    auto [g, a] = received(e.run, request);
    co_await fill_room(e.run, a, prompt);
    CHECK(!a.first(want[0], token_logprobs{.chosen = -0.5f}));
    a.complete();
    const auto piece = co_await g.async_next(asio::deferred);
    REQUIRE(piece.logprobs);
    CHECK(piece.logprobs->chosen == -0.5f);
    auto got = (co_await read_all(std::move(g))).tokens;
    got.insert(got.begin(), piece.token);
    CHECK(got == want);
    // The test tells whether it is found: the last token depends on how often each was there.
    auto forgetful = request;
    forgetful.prompt.push_back(want[0]);
    forgetful.max_tokens = 59;
    const auto forgot = (co_await read_all(e.run.submit(forgetful).value())).tokens;
    CHECK(!std::equal(forgot.begin(), forgot.end(), want.begin() + 1));
  });
}

TEST_CASE("arrival: of leading tokens what is missing is computed, and nothing else, and the answer is the same") {
  for (std::uint32_t size : {2u, 17u, 33u, 100u})
    for (std::uint32_t there : {1u, 16u, 31u, size - 1})
      if (there < size)
        for (bool ahead : {false, true})
          once([&](asio::any_io_executor ex) -> awaitable<void> {
            CAPTURE(size);
            CAPTURE(there);
            toy_engine e(ex, {.max_batched_tokens = 40, .async_scheduling = ahead});
            const auto prompt = toy_prompt(size, 1);
            auto request = toy_request(prompt, 20);
            request.continues = 1;
            auto both = e.run.receive(request, there);
            REQUIRE(both.has_value());
            auto& [g, a] = *both;
            const auto room = co_await a.async_room(asio::deferred);
            CHECK(room.first == 0);
            CHECK(room.tokens == there);
            CHECK(room.blocks.size() == (size + bt - 1) / bt);
            fill_toy_kv(e.run.pool(), room.blocks, prompt, 0, there);
            CHECK(a.first(3) == errc::invalid_argument);
            a.complete();
            const auto got = co_await read_all(std::move(g));
            CHECK(got.tokens == toy_answer(prompt, 20));
            CHECK(got.report.cached_tokens == there);
            co_await e.drain();
            const auto left = size - there;
            CHECK(e.run.counters().steps == (left + 39) / 40 + 19);
            CHECK(e.run.counters().blocks_in_use == 0);
          });
  once([](asio::any_io_executor ex) -> awaitable<void> {
    toy_engine e(ex, {});
    const auto prompt = toy_prompt(5 * bt + 3, 1);
    CHECK((co_await read_all(e.run.submit(toy_request(prompt, 3)).value())).tokens == toy_answer(prompt, 3));
    // More was here than comes.
    for (std::uint32_t there : {3u, 5 * bt, 5 * bt + 2}) {
      auto both = e.run.receive(toy_request(prompt, 3), there);
      REQUIRE(both.has_value());
      const auto room = co_await both->second.async_room(asio::deferred);
      CHECK(room.first == std::min(there, 5 * bt));
      fill_toy_kv(e.run.pool(), room.blocks, prompt, room.first, room.tokens);
      both->second.complete();
      CHECK((co_await read_all(std::move(both->first))).tokens == toy_answer(prompt, 3));
    }
    for (std::uint32_t wrong : {0u, 5 * bt + 3, 5 * bt + 4})
      CHECK(e.run.receive(toy_request(prompt, 3), wrong).error() == errc::invalid_argument);
    co_await e.drain();
    CHECK(e.run.counters().blocks_in_use == 0);
  });
}

TEST_CASE("arrival: a token that can't be one, or a second one, is refused, and nothing happened") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    toy_engine e(ex, {});
    const auto prompt = toy_prompt(20, 1);
    auto [g, a] = received(e.run, toy_request(prompt, 5));
    co_await fill_room(e.run, a, prompt);
    CHECK(a.first(-1) == errc::invalid_argument);
    CHECK(a.first(toy_model::vocab) == errc::invalid_argument);
    CHECK(!a.first(toy_next(prompt)));
    CHECK(a.first(3) == errc::invalid_argument);
    a.complete();
    CHECK((co_await read_all(std::move(g))).tokens == toy_answer(prompt, 5));
    CHECK(e.run.receive(toy_request({}, 5)).error() == errc::invalid_argument);
    CHECK(e.run.receive(toy_request(toy_prompt(5000, 1), 5)).error() == errc::too_large);
  });
}

TEST_CASE("arrival: blocks stay until the writer says that it is over, whoever ended the answer") {
  for (bool by_token : {true, false})
    once([by_token](asio::any_io_executor ex) -> awaitable<void> {
      const auto prompt = toy_prompt(40, 1);
      toy_engine e(ex, {}, {}, {toy_next(prompt)});
      auto [g, a] = received(e.run, toy_request(prompt, 5));
      const auto room = co_await a.async_room(asio::deferred);
      if (by_token)
        CHECK(!a.first(toy_next(prompt)));  // an end token
      else
        g.cancel();
      co_await a.async_over(asio::deferred);
      CHECK(a.over());
      const auto got = co_await read_all(std::move(g));
      CHECK(got.tokens.size() == by_token);
      CHECK(got.ended == (by_token ? error_code(asio::error::eof) : error_code(asio::error::operation_aborted)));
      co_await e.drain();
      CHECK(e.run.counters().blocks_in_use == 3);
      for (auto r : room.refs) CHECK(e.run.pool().current(r));
      by_token ? a.complete() : a.fail(errc::unavailable);
      CHECK(e.run.counters().blocks_in_use == 0);
      for (auto r : room.refs) CHECK(!e.run.pool().current(r));
      CHECK(e.run.receive(toy_request(prompt, 1)).error() == errc::closed);
    });
}

TEST_CASE("arrival: one that fails keeps what it was told to keep, for the next to begin behind") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    toy_engine e(ex, {});
    const auto prompt = toy_prompt(5 * bt, 1);
    for (const auto [told, first] : {std::pair{0u, 0u}, {bt - 1, 0u}, {2 * bt + 3, 2 * bt}, {5 * bt, 5 * bt}}) {
      auto [g, a] = received(e.run, toy_request(prompt, 3));
      const auto room = co_await fill_room(e.run, a, prompt);
      a.keep(told);
      a.keep(told / 2);  // no less than before
      a.fail(errc::unavailable);
      CHECK(a.over());
      CHECK((co_await read_all(std::move(g))).ended == errc::unavailable);
      CHECK(e.run.counters().blocks_in_use == 0);
      auto [g2, a2] = received(e.run, toy_request(prompt, 3));
      CHECK((co_await a2.async_room(asio::deferred)).first == first);
    }
    CHECK(e.run.counters().failed == 4);
  });
}

TEST_CASE("arrival: what waits for a room hears why there is none, and the engine may go first") {
  once([](asio::any_io_executor ex) -> awaitable<void> {
    std::optional<toy_engine> e(std::in_place, ex, engine_options{.kv_blocks = 8});
    const auto prompt = toy_prompt(6 * bt, 1);
    auto [g1, a1] = received(e->run, toy_request(prompt, 3));
    const auto room = co_await a1.async_room(asio::deferred);
    auto [g2, a2] = received(e->run, toy_request(toy_prompt(6 * bt, 2), 3));
    auto waits = [](arrival& a) -> awaitable<error_code> {
      auto [ec, none] = co_await a.async_room(asio::as_tuple(asio::deferred));
      CHECK(none.blocks.empty());
      co_return ec;
    };
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([](auto waits, arrival& a) -> awaitable<void> {
        CHECK(co_await waits(a) == asio::error::operation_aborted);
      }(waits, a2));
      co_await wait_for(1ms);
      g2.cancel();
    });
    CHECK(static_cast<bool>(v));
    CHECK(co_await waits(a2) == asio::error::operation_aborted);
    e.reset();
    CHECK(co_await waits(a1) == errc::closed);
    CHECK(a1.over());
    CHECK((co_await read_all(std::move(g1))).ended == errc::closed);
    // Whoever writes may still look at the room.
    CHECK(!room.memory.check(slice(room.memory.layout().shape(), {0, 4}, room.blocks)));
    a1.fail(errc::closed);
  });
}

// Pieces of answers, and what goes on elsewhere.
#include "apps/cluster/scripted_workers.hpp"

using namespace cokv;
using namespace cokv::cluster;
using namespace cokv::test;
using namespace cokv::test::scripted;

namespace {

void ends(std::vector<std::string> lines, std::string_view text, error_code why, status room = status::created,
          status prompt = status::ok) {
  co_test([=](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->lines = lines, w->room = room, w->prompt = prompt;
    co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
      auto a = answers.submit(request()).value();
      error_code ended;
      CHECK(co_await all_of(*a, ended) == text);
      CHECK_MESSAGE(ended == why, ended.message());
    });
    CHECK(w->made == 1);
    CHECK(w->given_up == 1);  // nothing is left for the worker to keep
  });
}

}  // namespace

TEST_CASE("remote_answers: pieces come as the decode worker tells them, and the report is of both workers") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->lines = {line_of(0), line_of(1), line_of(2, finish_reason::stop), encode(ending{})};
    co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
      auto a = answers.submit(request()).value();
      error_code ended;
      CHECK(co_await all_of(*a, ended) == "012");
      CHECK(ended == asio::error::eof);
      CHECK(a->report().prompt_tokens == 4);
      CHECK(a->report().generated_tokens == 3);
      CHECK(a->report().cached_tokens == 3);
      CHECK(a->report().reason == finish_reason::stop);
    });
    CHECK(w->prefills == 1);
    CHECK(w->prefills_cut == 0);
  });
}

TEST_CASE("remote_answers: what is repeated is told once, and what is missing is an error") {
  ends({line_of(0), line_of(0), line_of(1), encode(ending{})}, "01", asio::error::eof);
  ends({line_of(0), line_of(2), encode(ending{})}, "0", errc::protocol);
  ends({line_of(0), "{}"}, "0", errc::protocol);
}

TEST_CASE("remote_answers: an answer that was not ended is not complete") {
  ends({line_of(0)}, "0", errc::unavailable);
  ends({line_of(0), encode(ending{errc::device_lost, "gone"})}, "0", errc::device_lost);
  ends({}, "", errc::unavailable, status::service_unavailable);
}

namespace {

// After the first attempt, which told "01", others.
void moves(std::vector<std::vector<std::string>> attempts, std::string_view text, error_code why,
           std::function<void(const workers&)> check) {
  co_test([=](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->attempts = attempts;
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          auto asked = request();
          asked.max_tokens = 9;
          auto a = answers.submit(std::move(asked)).value();
          error_code ended;
          CHECK(co_await all_of(*a, ended) == text);
          CHECK_MESSAGE(ended == why, ended.message());
          CHECK(a->report().generated_tokens == text.size());
          CHECK(a->report().prompt_tokens == 4);
        },
        false, 4);
    check(*w);
  });
}

}  // namespace

TEST_CASE("remote_answers: what was told is part of the next attempt's prompt, and nothing is told twice") {
  moves({{line_of(0), line_of(1)}, {line_of(0), line_of(1, finish_reason::stop), encode(ending{})}}, "0101",
        asio::error::eof, [](const workers& w) {
          REQUIRE(w.created.size() == 2);
          CHECK(w.created[1].at("attempt") == 2);
          auto& r = w.created[1].at("request");
          CHECK(r.at("tokens") == json::value{1, 2, 3, 4, 10, 11});
          CHECK(r.at("continues") == 2);
          CHECK(r.at("max_tokens") == 7);
          CHECK(w.read == std::vector<std::string>{"0", "0"});
          CHECK(w.given_up == 2);
        });
}

TEST_CASE("remote_answers: an attempt whose KV came after all is read on where it was") {
  moves({{line_of(0), line_of(1)}, {"running", line_of(1), line_of(2, finish_reason::stop), encode(ending{})}}, "012",
        asio::error::eof, [](const workers& w) {
          CHECK(w.read == std::vector<std::string>{"0", "2"});
          CHECK(w.prefills == 1);
        });
}

TEST_CASE("remote_answers: an answer whose last token was told is complete, whatever becomes of its worker") {
  moves({{line_of(0), line_of(1, finish_reason::length)}}, "01", asio::error::eof,
        [](const workers& w) { CHECK(w.made == 1); });
}

TEST_CASE("remote_answers: it ends after so many attempts, with the last one's error") {
  moves({{line_of(0)}}, "0000", errc::unavailable, [](const workers& w) {
    CHECK(w.made == 4);
    CHECK(w.created[3].at("request").at("continues") == 3);
  });
  moves({{line_of(0), encode(ending{errc::device_lost, "gone"})}}, "0000", errc::device_lost,
        [](const workers& w) { CHECK(w.made == 4); });
}

TEST_CASE("remote_answers: what a slow reader has not got when its worker is lost comes from the next attempt") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    std::vector<std::string> many;
    for (std::uint32_t i = 0; i < 30; ++i) many.push_back(line_of(i));
    w->attempts = {many, {line_of(0), line_of(1, finish_reason::stop), encode(ending{})}};
    w->between = 0s;
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          auto asked = request();
          asked.max_tokens = 100;
          auto a = answers.submit(std::move(asked)).value();
          // Another life of it ends what it had, while more lines wait than are kept for a reader.
          co_await pause(40ms);
          w->life = "q";
          co_await pause(800ms);
          std::vector<token_id> got;
          while (auto g = co_await a->next()) got.push_back(g->token);
          REQUIRE(w->created.size() >= 2);
          const auto before = w->created.back().at("request").at("continues").to_number<std::size_t>();
          REQUIRE(got.size() == before + 2);
          for (std::size_t i = 0; i < before; ++i) CHECK(got[i] == static_cast<token_id>(10 + i));
          CHECK(got[before] == 10);
          CHECK(a->report().generated_tokens == got.size());
        },
        false, 4);
  });
}

TEST_CASE("remote_answers: who goes takes the prompt and the sequence along") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->lines = {line_of(0), line_of(1)};
    w->stays = true;
    w->between = 5ms;
    co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
      auto a = answers.submit(request()).value();
      CHECK((co_await a->next())->text == "0");
      CHECK(answers.requests() == 1);
      a.reset();
      co_await pause(20ms);
      CHECK(answers.requests() == 0);
      CHECK(w->given_up == 1);
    });
  });
}

TEST_CASE(
    "remote_answers: who watches sees where an answer is, its KV's way, and that it moved; who only goes moved "
    "nothing") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->attempts = {{line_of(0), line_of(1)}, {line_of(0), line_of(1)}};
    w->stays = true;
    w->between = 5ms;
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          std::vector<answer_event> told;
          answers.on_change = [&](const answer_event& e) { told.push_back(e); };
          CHECK(answers.underway(9).empty());
          auto r = request();
          r.max_tokens = 7;
          auto a = answers.submit(r).value(), b = answers.submit(request()).value();
          CHECK(answers.underway(9).size() == 2);
          CHECK(answers.underway(1).size() == 1);
          b.reset();
          CHECK((co_await a->next())->text == "0");
          CHECK((co_await a->next())->text == "1");
          co_await pause(10ms);
          const auto all = answers.underway(9);
          REQUIRE(all.size() == 1);
          CHECK(all[0].id == "r.0");
          CHECK(all[0].decode.starts_with("http://"));
          CHECK(all[0].prefill == all[0].decode);
          CHECK(all[0].prompt_tokens == 4);
          CHECK(all[0].told == 2);
          CHECK(all[0].most == 7);
          CHECK(all[0].attempt == 1);
          CHECK(all[0].moved == 0);
          a.reset();
          co_await pause(20ms);
          CHECK(answers.underway(9).empty());
          CHECK(answers.answers_moved() == 0);
          REQUIRE(told.size() == 1);
          CHECK(told[0].what == answer_change::sent);
          CHECK(told[0].id == "r.0");
          CHECK(told[0].amount == 128);
          CHECK(told[0].from == all[0].prefill);
          CHECK(told[0].to == all[0].decode);
        },
        false, 3);
  });
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->attempts = {{line_of(0)}, {line_of(0), encode(ending{})}};
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          std::vector<answer_event> told;
          answers.on_change = [&](const answer_event& e) { told.push_back(e); };
          auto a = answers.submit(request()).value();
          error_code ended;
          (void)co_await all_of(*a, ended);
          CHECK(answers.answers_moved() == 1);
          const auto moved = std::ranges::find(told, answer_change::answer_moved, &answer_event::what);
          REQUIRE(moved != told.end());
          CHECK(moved->amount == 1);
          CHECK(moved->from.starts_with("http://"));
        },
        false, 2);
  });
}

TEST_CASE("remote_answers: cancelled or destroyed at any step it leaves no request behind") {
  auto body = [](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->lines = {line_of(0), line_of(1), encode(ending{})};
    co_await with_workers(
        w,
        [](remote_answers& answers) -> awaitable<void> {
          auto a = answers.submit(request());
          if (!a) co_return;
          error_code ended;
          (void)co_await all_of(**a, ended);
        },
        true, 2);
  };
  cancel_at_every_step(body, {.real = false});
  destroy_at_every_step(body, {.real = false});
}

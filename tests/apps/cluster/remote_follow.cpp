// Answers that another router had begun, or whose workers it still holds.
#include "apps/cluster/scripted_workers.hpp"

using namespace cokv;
using namespace cokv::cluster;
using namespace cokv::test;
using namespace cokv::test::scripted;

TEST_CASE("remote_answers: a worker that the router before still holds is waited for, and has not failed") {
  for (const char* why : {"held_epoch", "stale_epoch"})
    for (std::size_t held : {1u, 4u, 9u})
      co_test([=](asio::any_io_executor) -> awaitable<void> {
        auto w = std::make_shared<workers>();
        w->lines = {line_of(0), line_of(1), line_of(2, finish_reason::stop), encode(ending{})};
        w->held = held, w->held_by = why;
        co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
          auto a = answers.submit(request(), "key.abc-0").value();
          error_code ended;
          CHECK(co_await all_of(*a, ended) == "012");
          CHECK_MESSAGE(ended == asio::error::eof, ended.message());
          CHECK(answers.answers_moved() + answers.prompts_moved() == 0);
        });
        CHECK(w->made == 1);
        CHECK(w->held == 0);
      });
}

TEST_CASE("remote_answers: another conflict is none that is waited for") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->held = 1000, w->held_by = "stale_attempt";
    co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
      auto a = answers.submit(request()).value();
      error_code ended;
      CHECK(co_await all_of(*a, ended) == "");
      CHECK(ended == errc::unavailable);
    });
    CHECK(w->held == 999);
  });
}

namespace {

// By a name, where the decode worker says that of it.
void named(std::string begun, std::vector<std::vector<std::string>> attempts, std::string_view text,
           std::function<void(const workers&, const remote_answers&)> check, duration thinks = 0s) {
  co_test(
      [=](asio::any_io_executor) -> awaitable<void> {
        auto w = std::make_shared<workers>();
        w->begun = begun, w->attempts = attempts, w->thinks = thinks;
        co_await with_workers(
            w,
            [&](remote_answers& answers) -> awaitable<void> {
              auto asked = request();
              asked.max_tokens = 9;
              auto a = answers.submit(std::move(asked), "key.abc-0").value();
              error_code ended;
              CHECK(co_await all_of(*a, ended) == text);
              CHECK_MESSAGE(ended == asio::error::eof, ended.message());
              CHECK(a->report().generated_tokens == text.size());
              co_await pause(20ms);
              CHECK(w->looked == 1);
              check(*w, answers);
            },
            false, 4);
      },
      {.real = thinks == 0s});
}

const std::vector<std::string> three{line_of(0), line_of(1), line_of(2, finish_reason::stop), encode(ending{})};

}  // namespace

TEST_CASE("remote_answers: one by a name that is decoded already, from its beginning, is read there") {
  for (const char* state : {"decodes", "over"})
    named(R"({"attempt":3,"pieces":2,"continues":0,"state":")" + std::string(state) + "\"}", {three}, "012",
          [](const workers& w, const remote_answers& answers) {
            CHECK(answers.answers_followed() == 1);
            CHECK(w.made == 0);
            CHECK(w.prefills == 0);
            CHECK(w.read == std::vector<std::string>{"0"});
            CHECK(w.given_up == 1);  // at its end
          });
}

TEST_CASE("remote_answers: one by a name that nobody can follow is computed, later than any attempt at it") {
  const auto computed = [](std::uint32_t attempt, std::size_t given_up) {
    return [=](const workers& w, const remote_answers& answers) {
      CHECK(answers.answers_followed() == 0);
      REQUIRE(w.created.size() == 1);
      CHECK(w.created[0].at("id") == "key.abc-0");
      CHECK(w.created[0].at("attempt") == attempt);
      CHECK(w.created[0].at("request").at("continues") == 0);
      CHECK(w.given_up == given_up);
    };
  };
  named("", {three}, "012", computed(1, 1));
  named("{", {three}, "012", computed(1, 1));
  named(R"({"attempt":3,"pieces":2,"continues":1,"state":"decodes"})", {three}, "012", computed(4, 2));
  named(R"({"attempt":3,"pieces":2,"continues":0,"state":"failed"})", {three}, "012", computed(4, 2));
  named(R"({"attempt":3,"pieces":1,"continues":0,"state":"waits"})", {three}, "012", computed(4, 1));
  named(R"({"attempt":1023,"pieces":1,"continues":0,"state":"waits"})", {three}, "012", computed(1, 2));
  named(R"({"attempt":3,"pieces":2,"continues":0,"state":"decodes"})", {three}, "012", computed(1, 1), 5s);
}

TEST_CASE("remote_answers: one that was followed and is lost goes on as any other") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->begun = R"({"attempt":3,"pieces":2,"continues":0,"state":"decodes"})";
    w->attempts = {{line_of(0), line_of(1)}};
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          std::vector<answer_event> told;
          answers.on_change = [&](const answer_event& e) { told.push_back(e); };
          auto asked = request();
          asked.max_tokens = 9;
          auto a = answers.submit(std::move(asked), "key.abc-0").value();
          CHECK((co_await a->next())->text == "0");
          CHECK((co_await a->next())->text == "1");
          w->attempts.push_back({line_of(0, finish_reason::stop), encode(ending{})});
          std::string rest;
          while (auto g = co_await a->next()) rest += g->text;
          CHECK(rest.ends_with('0'));
          REQUIRE(w->created.size() >= 1);
          CHECK(w->created[0].at("attempt") == 4);
          CHECK(w->created[0].at("request").at("continues") == 2);
          REQUIRE(!told.empty());
          CHECK(told[0].what == answer_change::followed);
          CHECK(told[0].amount == 2);
          CHECK(told[0].to.starts_with("http://"));
        },
        false, 4);
  });
}

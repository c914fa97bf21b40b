#include "cluster/piece_json.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "cokv/runtime/error.hpp"

using namespace cokv;
using namespace cokv::cluster;

TEST_CASE("piece_json: a piece is one line, and is read as it was written") {
  for (std::string text : {"", " the", "two\nlines\r\n", "\"\\", "\xe2\x82\xac\xf0\x9f\x98\x80", "\x01\x7f"}) {
    piece p{.index = 41, .what = {.token = 7, .text = text, .reason = finish_reason::length}};
    p.what.logprobs = token_logprobs{-1.0f / 3, {{9, -INFINITY}}};
    const auto line = encode(p);
    CHECK(line.find('\n') == line.npos);
    auto read = read_line(line);
    REQUIRE(read.has_value());
    REQUIRE(std::holds_alternative<piece>(*read));
    const auto& q = std::get<piece>(*read);
    CHECK(q.index == 41);
    CHECK(q.what.token == 7);
    CHECK(q.what.text == text);
    CHECK(q.what.reason == finish_reason::length);
    REQUIRE(q.what.logprobs.has_value());
    CHECK(q.what.logprobs->chosen == -1.0f / 3);
    CHECK(q.what.logprobs->top.at(0).logprob == -INFINITY);
  }
  for (auto reason : {finish_reason::none, finish_reason::stop}) {
    const auto read = read_line(encode(piece{.what = {.reason = reason}}));
    CHECK(std::get<piece>(*read).what.reason == reason);
    CHECK_FALSE(std::get<piece>(*read).what.logprobs.has_value());
  }
}

TEST_CASE("piece_json: an end is told apart from an error, whatever the error is") {
  CHECK_FALSE(std::get<ending>(*read_line(encode(ending{}))).code);
  const auto read = read_line(encode(ending{errc::unavailable, "the link \"went\" down"}));
  CHECK(std::get<ending>(*read).code == errc::unavailable);
  CHECK(std::get<ending>(*read).message == "the link \"went\" down");
  CHECK(std::get<ending>(*read_line(encode(ending{asio::error::broken_pipe, ""}))).code);
  const auto long_one = read_line(encode(ending{errc::closed, std::string(1023, 'x') + "\xe2\x82\xac"}));
  CHECK(std::get<ending>(*long_one).message == std::string(1023, 'x'));
}

TEST_CASE("piece_json: anything else is a broken protocol") {
  for (std::string_view text :
       {"", "{}", "[]", R"({"i":0,"token":1,"reason":null})", R"({"i":0,"text":"x","reason":null})",
        R"({"token":1,"text":"x","reason":null})", R"({"i":-1,"token":1,"text":"x","reason":null})",
        R"({"i":0,"token":1,"text":"x","reason":"bored"})", R"({"i":0,"token":1,"text":1,"reason":null})",
        R"({"i":0,"token":1,"text":"x","reason":null,"end":"ok"})", R"({"end":"fine"})",
        R"({"end":"ok","code":"closed"})", R"({"end":"error"})", R"({"end":"error","code":"x"})",
        R"({"i":0,"i":1,"token":1,"text":"x","reason":null})",
        "{\"i\":0,\"token\":1,\"text\":\"\xff\",\"reason\":null}"})
    CHECK_MESSAGE(read_line(text).error() == errc::protocol, text);
}

#include "cluster/word.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "cluster/error_name.hpp"
#include "cokv/runtime/error.hpp"

using namespace cokv;
using namespace cokv::cluster;

namespace {

error_code read(std::string_view text) { return read_word(std::as_bytes(std::span(text))).error(); }

}  // namespace

TEST_CASE("word: each kind is read as it was written") {
  const word begin{.kind = word::what::begin, .id = "a.0", .attempt = 2};
  auto r = read_word(encode(begin));
  REQUIRE(r.has_value());
  CHECK(r->kind == word::what::begin);
  CHECK(r->id == "a.0");
  CHECK(r->attempt == 2);
  CHECK(r->worker == 0);
  r = read_word(encode({.kind = word::what::begin, .id = "a.0", .attempt = 2, .worker = 4095}));
  REQUIRE(r.has_value());
  CHECK(r->worker == 4095);

  word first{.kind = word::what::first, .id = "a.0", .attempt = 2, .token = 2'147'483'647};
  r = read_word(encode(first));
  REQUIRE(r.has_value());
  CHECK(r->kind == word::what::first);
  CHECK(r->token == first.token);
  CHECK_FALSE(r->logprobs.has_value());
  first.logprobs = token_logprobs{-0.1f, {{1, -0.1f}, {2, -INFINITY}}};
  r = read_word(encode(first));
  REQUIRE(r.has_value());
  REQUIRE(r->logprobs.has_value());
  CHECK(r->logprobs->chosen == -0.1f);
  REQUIRE(r->logprobs->top.size() == 2);
  CHECK(r->logprobs->top[0].logprob == -0.1f);
  CHECK(r->logprobs->top[1].token == 2);
  CHECK(r->logprobs->top[1].logprob == -INFINITY);

  r = read_word(encode({.kind = word::what::kept, .id = "a.0", .attempt = 2, .tokens = 160}));
  REQUIRE(r.has_value());
  CHECK(r->kind == word::what::kept);
  CHECK(r->tokens == 160);

  r = read_word(encode({.kind = word::what::failed, .id = "a.0", .attempt = 2, .code = errc::device_lost}));
  REQUIRE(r.has_value());
  CHECK(r->kind == word::what::failed);
  CHECK(r->code == errc::device_lost);
}

TEST_CASE("word: what is none is a broken protocol, however near it is to one") {
  CHECK(!read(R"({"begin":"a","attempt":1})"));
  for (std::string_view text : {"",
                                "{}",
                                "[]",
                                "null",
                                "{\"begin\":\"a\"}",
                                R"({"begin":"a","attempt":1)",
                                R"({"begin":1,"attempt":1})",
                                R"({"begin":"","attempt":1})",
                                R"({"begin":"a/b","attempt":1})",
                                R"({"begin":"a b","attempt":1})",
                                R"({"begin":"a","attempt":-1})",
                                R"({"begin":"a","attempt":1.0})",
                                R"({"begin":"a","attempt":1025})",
                                R"({"begin":"a","attempt":1,"token":5})",
                                R"({"begin":"a","attempt":1,"worker":4096})",
                                R"({"kept":"a","attempt":1,"tokens":1,"worker":1})",
                                R"({"begin":"a","first":"a","attempt":1})",
                                R"({"begin":"a","begin":"b","attempt":1})",
                                R"({"first":"a","attempt":1})",
                                R"({"first":"a","attempt":1,"token":2147483648})",
                                R"({"first":"a","attempt":1,"token":1,"logprobs":[]})",
                                R"({"first":"a","attempt":1,"token":1,"logprobs":{"chosen":0,"top":[[1]]}})",
                                R"({"kept":"a","attempt":1})",
                                R"({"kept":"a","attempt":1,"tokens":16777217})",
                                R"({"failed":"a","attempt":1})",
                                R"({"attempt":1})",
                                "{\"begin\":\"\xff\",\"attempt\":1}"})
    CHECK_MESSAGE(read(text) == errc::protocol, text);
  CHECK(read("{\"begin\":\"" + std::string(129, 'x') + "\",\"attempt\":1}") == errc::protocol);
  CHECK(read(std::string(60'000, '[')) == errc::protocol);
}

TEST_CASE("error names: one for each, and none of them says that all is well") {
  for (error_code ec : {make_error_code(errc::unavailable), make_error_code(errc::stale_reference),
                        make_error_code(errc::namespace_mismatch), error_code(asio::error::operation_aborted)})
    CHECK(error_of(name_of(ec)) == ec);
  CHECK(name_of({}) == "ok");
  CHECK(name_of(asio::error::connection_reset) == "failed");
  for (std::string_view name : {"failed", "", "ok", "of tomorrow"}) CHECK(error_of(name) == errc::partial);
}

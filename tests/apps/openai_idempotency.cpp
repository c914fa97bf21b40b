#include "openai/idempotency.hpp"

#include <doctest/doctest.h>

#include <set>

#include "cluster/fields.hpp"

using namespace cokv;
using namespace cokv::openai;

namespace {

// The key, "none", or the reason of a refusal.
std::string read(const std::vector<std::string>& values) {
  boost::beast::http::fields f;
  for (auto& v : values) f.insert("idempotency-key", v);
  const auto key = read_idempotency_key(f);
  if (!key) {
    CHECK(key.error().code == http::status::bad_request);
    CHECK(key.error().parameter == "Idempotency-Key");
    return key.error().reason;
  }
  return key->value_or("none");
}

}  // namespace

TEST_CASE("idempotency: a key is a bounded line of visible characters, in quotes or not") {
  CHECK(read({}) == "none");
  CHECK(read({"8e03978e-40d5-43dd-bc93-6894a57f9324"}) == "8e03978e-40d5-43dd-bc93-6894a57f9324");
  CHECK(read({"\"quoted\""}) == "quoted");
  CHECK(read({"~!#$%&'()*+-./:;<=>?@[]^_`{|}"}) == "~!#$%&'()*+-./:;<=>?@[]^_`{|}");
  CHECK(read({std::string(255, 'k')}) == std::string(255, 'k'));
  CHECK(read({'"' + std::string(255, 'k') + '"'}) == std::string(255, 'k'));
  for (const auto& bad :
       {std::string(), std::string("\"\""), std::string("\""), std::string("\"a"), std::string("a b"),
        std::string("a,b"), std::string("a\\b"), std::string("\"a\"b\""), std::string("a\tb"), std::string("a\0b", 3),
        std::string("a\x7f"), std::string("\xc3\xa9"), std::string(256, 'k'), std::string(1 << 15, 'k')}) {
    CAPTURE(bad);
    CHECK(read({bad}) == "invalid_idempotency_key");
  }
  CHECK(read({"a", "b"}) == "invalid_idempotency_key");
  CHECK(read({"a", "a"}) == "invalid_idempotency_key");
}

TEST_CASE("idempotency: a holder is a tenant, or the API key that came") {
  CHECK(holder_of({.name = "ana"}, "Bearer x") == holder_of({.name = "ana"}, "Bearer y"));
  CHECK(holder_of({}, "Bearer x") != holder_of({}, "Bearer y"));
  CHECK(holder_of({}, "Bearer x").find("Bearer") == std::string::npos);
  CHECK(holder_of({}, "").empty());
  const auto of_a_key = holder_of({}, "Bearer x");
  CHECK(holder_of({.name = of_a_key}, "") != of_a_key);
}

TEST_CASE("idempotency: what is made from a key is the same everywhere, and another where anything is") {
  const answer_name a("ana", "k", "/v1/completions", "{}");
  const answer_name again("ana", "k", "/v1/completions", "{}");
  CHECK(a.request() == again.request());
  CHECK(a.id() == again.id());
  CHECK(a.seed() == again.seed());
  CHECK(a.sequence(1) == again.sequence(1));
  CHECK(a.sequence(2) == a.sequence(0).substr(0, 36) + "-2");
  CHECK(cluster::is_id(a.sequence(127)));
  std::set<std::uint64_t> numbers{a.id(), a.seed()};
  std::set<std::string> sequences{a.sequence(0), a.sequence(1)};
  const answer_name others[] = {{"bo", "k", "/v1/completions", "{}"},
                                {"ana", "l", "/v1/completions", "{}"},
                                {"an", "ak", "/v1/completions", "{}"},
                                {"ana", "k", "/v1/chat/completions", "{}"},
                                {"ana", "k", "/v1/completions", "{} "}};
  for (auto& o : others) {
    CHECK(numbers.insert(o.id()).second);
    CHECK(numbers.insert(o.seed()).second);
    CHECK(sequences.insert(o.sequence(0)).second);
  }
  CHECK(others[0].request() == a.request());
  CHECK(others[3].request() != a.request());
  CHECK(others[4].request() != a.request());
  // A router of another version takes over, too.
  CHECK(a.sequence(0) == "key.02726ebeaf055c4018962e94a211df50-0");
  CHECK(a.id() == 13368105084335692996u);
}

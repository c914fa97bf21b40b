// A request's Idempotency-Key (draft-ietf-httpapi-idempotency-key-header): what it may be, and what is made from it, so that
// whoever gets the request again, this server or another one, gives the same answer. Pure.
//
//     auto key = read_idempotency_key(x.request().fields);           // nullopt: there is none; or a refusal
//     const answer_name name(holder_of(x.who(), authorization), **key, "/v1/completions", body);
//     name.request()                                                 // what a second request has to be the same in
//     name.id(), name.seed(), name.sequence(0)                       // the same wherever they are made
//
// All are SHA-256, with the length before each text: request() over "cokv.request.1", route and body; the others are parts of
// the one over "cokv.answer.1", holder, key and request().
#pragma once

#include <boost/system/result.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cokv/kvstream/id256.hpp"
#include "http/api_keys.hpp"
#include "http/message.hpp"

namespace cokv::openai {

constexpr std::string_view idempotency_field = "Idempotency-Key";
constexpr std::size_t most_key_bytes = 255;

// Visible ASCII but quotes, commas and backslashes, 1 to 255 of them; in double quotes, as the draft has it, it is the same
// key. Refused: anything else, and two fields.
boost::system::result<std::optional<std::string>, http::problem> read_idempotency_key(
    const boost::beast::http::fields& fields);

// Whose answers are kept apart from all others': the tenant's name, or else the API key as it came, by its digest.
std::string holder_of(const http::key_holder& who, std::string_view authorization);

class answer_name {
 public:
  answer_name(std::string holder, std::string key, std::string_view route, std::string_view body);

  const std::string& holder() const noexcept { return holder_; }
  const std::string& key() const noexcept { return key_; }
  const id256& request() const noexcept { return request_; }

  std::uint64_t id() const noexcept;    // of the response
  std::uint64_t seed() const noexcept;  // of its sampling, where the client chose none
  // Of a choice at a decode worker: no name that a router makes up is like it.
  std::string sequence(std::uint32_t choice) const;

 private:
  std::string holder_, key_;
  id256 request_, made_;
};

}  // namespace cokv::openai

#include "openai/idempotency.hpp"

#include <algorithm>

namespace cokv::openai {
namespace {

void add(sha256& h, std::string_view text) {
  h.update_u32(static_cast<std::uint32_t>(text.size()));
  h.update(text);
}

std::uint64_t number_at(const id256& of, std::size_t offset) {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < sizeof n; ++i) n = n << 8 | std::to_integer<std::uint64_t>(of.bytes[offset + i]);
  return n;
}

bool may_be_in_a_key(char c) { return c > 0x20 && c < 0x7f && c != '"' && c != ',' && c != '\\'; }

http::problem wrong(std::string_view what) {
  return {http::status::bad_request, std::string(idempotency_field) + ": " + std::string(what),
          std::string(idempotency_field), "invalid_idempotency_key"};
}

}  // namespace

boost::system::result<std::optional<std::string>, http::problem> read_idempotency_key(
    const boost::beast::http::fields& fields) {
  const auto [first, last] = fields.equal_range(idempotency_field);
  if (first == last) return std::optional<std::string>();
  if (std::next(first) != last) return wrong("takes one key");
  std::string_view key(first->value().data(), first->value().size());
  if (key.size() >= 2 && key.front() == '"' && key.back() == '"') key = key.substr(1, key.size() - 2);
  if (key.empty()) return wrong("is empty");
  if (key.size() > most_key_bytes) return wrong("is longer than " + std::to_string(most_key_bytes) + " characters");
  if (!std::ranges::all_of(key, may_be_in_a_key))
    return wrong("takes visible ASCII characters but quotes, commas and backslashes");
  return std::optional(std::string(key));
}

std::string holder_of(const http::key_holder& who, std::string_view authorization) {
  if (!who.name.empty()) return "name " + who.name;
  if (authorization.empty()) return {};
  sha256 h;
  h.update(authorization);
  return "key " + h.finish().hex();
}

answer_name::answer_name(std::string holder, std::string key, std::string_view route, std::string_view body)
    : holder_(std::move(holder)), key_(std::move(key)) {
  sha256 h;
  for (const auto text : {std::string_view("cokv.request.1"), route, body}) add(h, text);
  request_ = h.finish();
  for (const auto text : {std::string_view("cokv.answer.1"), std::string_view(holder_), std::string_view(key_)})
    add(h, text);
  h.update(request_.bytes);
  made_ = h.finish();
}

std::uint64_t answer_name::id() const noexcept { return number_at(made_, 0); }
std::uint64_t answer_name::seed() const noexcept { return number_at(made_, 8); }

std::string answer_name::sequence(std::uint32_t choice) const {
  return "key." + made_.hex().substr(32) + '-' + std::to_string(choice);
}

}  // namespace cokv::openai

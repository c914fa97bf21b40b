#include "cache/key_list.hpp"

#include "http/json.hpp"

namespace cokv::cache {
namespace {

key_list bad(std::string message, std::string where = {}) {
  return {{}, http::problem{http::status::bad_request, std::move(message), std::move(where), "invalid_argument"}};
}

}  // namespace

key_list parse_key_list(std::string_view text, std::size_t max_keys) {
  namespace json = boost::json;
  const auto value = http::parse_json(text);
  if (!value) return {{}, value.error()};
  const json::value* list = &*value;
  if (const auto* object = value->if_object()) {
    list = object->if_contains("keys");
    if (!list) return bad("the list of keys is missing", "keys");
    if (object->size() != 1) return bad("nothing but keys is asked for here");
  }
  const auto* items = list->if_array();
  if (!items) return bad("keys is not a list", "keys");
  if (items->size() > max_keys)
    return {{},
            http::problem{http::status::payload_too_large, "more than " + std::to_string(max_keys) + " keys", "keys",
                          "too_large"}};
  key_list out;
  out.keys.reserve(items->size());
  for (std::size_t i = 0; i < items->size(); ++i) {
    const auto* hex = (*items)[i].if_string();
    const auto key = hex ? block_key::parse({hex->data(), hex->size()}) : std::nullopt;
    if (!key) return bad("not 64 hexadecimal digits", "keys[" + std::to_string(i) + "]");
    out.keys.push_back(*key);
  }
  return out;
}

}  // namespace cokv::cache

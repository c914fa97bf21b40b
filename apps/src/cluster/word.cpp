#include "cluster/word.hpp"

#include <boost/json/serialize.hpp>

#include "cluster/error_name.hpp"
#include "cluster/request_json.hpp"
#include "cluster/ticket.hpp"
#include "cokv/runtime/error.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace json = boost::json;

link_message encode(const word& w) {
  json::object o;
  switch (w.kind) {
    case word::what::begin:
      o["begin"] = w.id;
      if (w.worker != 0) o["worker"] = w.worker;
      break;
    case word::what::first:
      o["first"] = w.id;
      o["token"] = w.token;
      if (w.logprobs) o["logprobs"] = to_json(*w.logprobs);
      break;
    case word::what::kept:
      o["kept"] = w.id;
      o["tokens"] = w.tokens;
      break;
    case word::what::failed: {
      const auto name = name_of(w.code);
      o["failed"] = w.id;
      o["code"] = json::string(name.data(), name.size());
      break;
    }
  }
  o["attempt"] = w.attempt;
  const auto text = json::serialize(o);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

result<word> read_word(std::span<const std::byte> message) {
  const auto v = http::parse_json({reinterpret_cast<const char*>(message.data()), message.size()});
  if (!v) return errc::protocol;
  fields f(*v, "word");
  word w;
  if (f.has("begin")) {
    w.id = f.id("begin");
    if (f.has("worker")) w.worker = f.u32("worker", topology::max_workers - 1);
  } else if (f.has("first")) {
    w.kind = word::what::first;
    w.id = f.id("first");
    w.token = f.token("token");
    if (f.has("logprobs"))
      w.logprobs = f.take<token_logprobs>("logprobs",
                                          [](const json::value& l) { return read_logprobs(l, word::most_logprobs); });
  } else if (f.has("kept")) {
    w.kind = word::what::kept;
    w.id = f.id("kept");
    w.tokens = f.u32("tokens", most_tokens);
  } else {
    w.kind = word::what::failed;
    w.id = f.id("failed");
    w.code = error_of(f.text("code", 64));
  }
  w.attempt = f.u32("attempt", most_attempts);
  if (f.end()) return errc::protocol;
  return w;
}

}  // namespace cokv::cluster

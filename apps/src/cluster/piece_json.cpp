#include "cluster/piece_json.hpp"

#include <boost/json/serialize.hpp>

#include "cluster/error_name.hpp"
#include "cluster/request_json.hpp"
#include "cokv/runtime/error.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace json = boost::json;
namespace {

constexpr std::size_t most_text_bytes = 1 << 20;

json::value reason_value(finish_reason reason) {
  if (reason == finish_reason::stop) return "stop";
  if (reason == finish_reason::length) return "length";
  return nullptr;
}

finish_reason take_reason(fields& f) {
  if (!f.has("reason")) return finish_reason::none;
  const auto text = f.text("reason", 16);
  if (text == "stop") return finish_reason::stop;
  if (text == "length") return finish_reason::length;
  f.refuse("reason", "is none");
  return finish_reason::none;
}

// Cut where a character begins.
std::string shortened(std::string text) {
  if (text.size() <= most_message_bytes) return text;
  auto n = most_message_bytes;
  while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80) --n;
  text.resize(n);
  return text;
}

}  // namespace

std::string encode(const piece& p) {
  json::object o{
      {"i", p.index}, {"token", p.what.token}, {"text", p.what.text}, {"reason", reason_value(p.what.reason)}};
  if (p.what.logprobs) o["logprobs"] = to_json(*p.what.logprobs);
  return json::serialize(o);
}

std::string encode(const ending& e) {
  if (!e.code) return R"({"end":"ok"})";
  const auto name = name_of(e.code);
  return json::serialize(json::object{
      {"end", "error"}, {"code", json::string(name.data(), name.size())}, {"message", shortened(e.message)}});
}

result<line> read_line(std::string_view text) {
  const auto v = http::parse_json(text);
  if (!v) return errc::protocol;
  fields f(*v, "piece");
  if (f.has("end")) {
    ending e;
    const auto how = f.text("end", 16);
    if (how == "error") {
      e.code = error_of(f.text("code", 64));
      e.message = f.text("message", most_message_bytes);
    } else if (how != "ok") {
      f.refuse("end", "is neither");
    }
    if (f.end()) return errc::protocol;
    return line(std::move(e));
  }
  piece p;
  p.index = f.u32("i");
  p.what.token = f.token("token");
  p.what.text = f.text("text", most_text_bytes);
  p.what.reason = take_reason(f);
  if (f.has("logprobs"))
    p.what.logprobs =
        f.take<token_logprobs>("logprobs", [](const json::value& l) { return read_logprobs(l, most_line_logprobs); });
  if (f.end()) return errc::protocol;
  return line(std::move(p));
}

}  // namespace cokv::cluster

#include "cokv/engine/chat_template.hpp"

#include <array>
#include <string_view>
#include <utility>

#include "chat/machine.hpp"
#include "chat/parser.hpp"
#include "chat/strftime.hpp"
#include "cokv/runtime/detail/json_file.hpp"
#include "cokv/runtime/error.hpp"
#include "tokenizer/utf8.hpp"

namespace cokv {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> titles{
    {{"system", "System"}, {"developer", "System"}, {"user", "User"}, {"assistant", "Assistant"}, {"tool", "Tool"}}};

std::string_view trim(std::string_view s) {
  constexpr std::string_view space = " \t\r\n";
  auto first = s.find_first_not_of(space);
  if (first == s.npos) return {};
  return s.substr(first, s.find_last_not_of(space) - first + 1);
}

constexpr std::uint64_t template_limit = 1 << 20, config_limit = 16 << 20;
constexpr std::size_t most_tokens = 256, longest_error = 4096;

std::string_view view(const detail::json::string& s) { return {s.data(), s.size()}; }

// Every "..._token" of a tokenizer's file, as a string or as an object with its content.
void read_tokens(const detail::fields& f, chat_template::special_tokens& out) {
  for (auto& [key, v] : f.raw()) {
    std::string name(key.data(), key.size());
    if (!name.ends_with("_token")) continue;
    std::string content;
    if (auto* s = v.if_string()) {
      content = view(*s);
    } else if (v.is_object()) {
      content = f.object(name).string("content");
    } else {
      continue;
    }
    std::erase_if(out, [&](auto& t) { return t.first == name; });
    if (out.size() == most_tokens) f.fail(name, "more than " + std::to_string(most_tokens) + " special tokens");
    out.emplace_back(std::move(name), std::move(content));
  }
}

// The template in tokenizer_config.json: one, or a list of which one is called default.
std::optional<std::string> template_in(const detail::fields& f) {
  auto* v = f.find("chat_template");
  if (!v) return std::nullopt;
  if (auto* s = v->if_string()) return std::string(view(*s));
  std::size_t i = 0;
  for (auto& item : f.array("chat_template")) {
    detail::fields one(item, f.place("chat_template[" + std::to_string(i++) + "]."));
    if (one.string("name") == "default") return std::string(one.string("template"));
  }
  f.fail("chat_template", "none of its templates is called default");
}

chat::value text_value(std::string_view s) { return chat::value(chat::text(std::make_shared<const std::string>(s))); }

// What a template says of its failure may hold all that it was given.
std::string shortened(std::string s) {
  if (s.size() <= longest_error) return s;
  s.resize(longest_error);
  s.resize(detail::utf8_valid_prefix(s));
  return s + "...";
}

}  // namespace

struct chat_template::parsed {
  std::string name;
  chat::program program;
  special_tokens special;
};

void throw_exception_from_error(const chat_error& e, const boost::source_location&) {
  throw std::runtime_error(e.what);
}

std::tm local_time(wall_time t) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(t).time_since_epoch().count();
  const auto at = static_cast<std::time_t>(seconds);
  std::tm out{};
  ::localtime_r(&at, &out);
  return out;
}

chat_template chat_template::parse(std::string_view jinja, const std::string& name, special_tokens special) {
  if (jinja.size() > template_limit)
    throw config_error(name + ": " + std::to_string(jinja.size()) + " bytes, more than the limit of " +
                       std::to_string(template_limit));
  if (detail::utf8_valid_prefix(jinja) != jinja.size()) throw config_error(name + ": is not UTF-8");
  for (auto& [key, content] : special)
    if (detail::utf8_valid_prefix(content) != content.size()) throw config_error(name + ": " + key + " is not UTF-8");
  chat_template out;
  try {
    out.own_ = std::make_shared<const parsed>(parsed{name, chat::parse_template(jinja), std::move(special)});
  } catch (const chat::syntax_error& e) {
    throw config_error(name + ": line " + std::to_string(e.line) + ": " + detail::printable(e.what()));
  }
  return out;
}

chat_template chat_template::load(const std::filesystem::path& dir) {
  const auto config = dir / "tokenizer_config.json", map = dir / "special_tokens_map.json",
             own = dir / "chat_template.jinja";
  std::optional<std::string> jinja;
  auto name = own.string();
  special_tokens special;
  bool tokens_elsewhere = true;
  if (std::filesystem::exists(config)) {
    const auto v = detail::parse_json(detail::read_file(config, config_limit), config.string());
    const detail::fields f(v, config.string() + ": ");
    jinja = template_in(f);
    if (jinja) name = config.string() + ": chat_template";
    read_tokens(f, special);
    tokens_elsewhere = !f.has("added_tokens_decoder");
  }
  if (std::filesystem::exists(own)) {
    jinja = detail::read_file(own, template_limit);
    name = own.string();
  }
  if (!jinja) return {};
  // As checkpoints were kept before their tokens were listed in tokenizer_config.json.
  if (tokens_elsewhere && std::filesystem::exists(map)) {
    const auto v = detail::parse_json(detail::read_file(map, config_limit), map.string());
    read_tokens(detail::fields(v, map.string() + ": "), special);
  }
  return parse(*jinja, name, std::move(special));
}

chat_result<std::string> chat_template::render(std::span<const chat_message> messages, wall_time now,
                                               to_local zone) const {
  if (!own_) {
    auto plain = render_chat(messages);
    if (!plain) return chat_error{false, plain.error().message()};
    return std::move(*plain);
  }
  if (messages.empty()) return chat_error{false, "there is no message"};
  const chat::time_text tell = [&](std::string_view format) {
    const auto micros = std::chrono::floor<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
    return chat::format_time(format, zone(now), static_cast<unsigned>(micros < 0 ? micros + 1'000'000 : micros));
  };
  chat::variables given;
  std::optional<chat::machine> m;
  try {
    m.emplace(own_->program, given, tell);
    chat::values list;
    for (auto& message : messages) {
      for (auto* s : {&message.role, &message.content})
        if (detail::utf8_valid_prefix(*s) != s->size()) return chat_error{false, "a message is not UTF-8"};
      list.push_back(chat::make_mapping(
          {{text_value("role"), text_value(message.role)}, {text_value("content"), text_value(message.content)}},
          m->cost));
    }
    for (auto& [key, content] : own_->special) given.emplace_back(key, text_value(content));
    given.emplace_back("messages", chat::make_list(std::move(list), m->cost));
    given.emplace_back("add_generation_prompt", chat::value(true));
    given.emplace_back("tools", chat::value(chat::none{}));
    given.emplace_back("documents", chat::value(chat::none{}));
    return m->run();
  } catch (const chat::render_error& e) {
    if (e.raised) return chat_error{true, shortened(e.what())};
    return chat_error{false, "the chat template, line " + std::to_string(m->line()) + ": " + shortened(e.what())};
  }
}

encode_options chat_template::encoding() const noexcept {
  if (own_) return {.parse_special = true, .add_special = false};
  return {.parse_special = false, .add_special = true};
}

std::vector<std::string> chat_template::stop_strings() const {
  return own_ ? std::vector<std::string>{} : chat_stop_strings();
}

result<std::string> render_chat(std::span<const chat_message> messages) {
  if (messages.empty()) return make_error_code(errc::invalid_argument);
  std::string out;
  for (auto& m : messages) {
    std::string_view title;
    for (auto& [role, name] : titles)
      if (role == m.role) title = name;
    if (title.empty()) return make_error_code(errc::invalid_argument);
    out.append(title).append(": ").append(trim(m.content)).append("\n\n");
  }
  return out + "Assistant:";
}

std::vector<std::string> chat_stop_strings() { return {"\n\nUser:"}; }

}  // namespace cokv

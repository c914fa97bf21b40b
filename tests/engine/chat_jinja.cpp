// Chat templates against what Jinja makes of them in the reference (scripts/golden_chat), and what is refused instead.
#include <doctest/doctest.h>

#include <boost/json.hpp>

#include "cokv/engine/chat_template.hpp"
#include "files.hpp"

using namespace cokv;
using namespace cokv::test;
namespace json = boost::json;

namespace {

const json::value& fixture() {
  static const auto v = json::parse(slurp(source_dir() / "tests/engine/fixtures/chat/cases.json"));
  return v;
}

std::vector<chat_message> messages_of(const json::value& v) {
  std::vector<chat_message> out;
  for (auto& m : v.as_array())
    out.push_back({json::value_to<std::string>(m.at("role")), json::value_to<std::string>(m.at("content"))});
  return out;
}

// The fixture's clock.
std::tm march(wall_time) {
  std::tm t{};
  t.tm_year = 2025 - 1900;
  t.tm_mon = 2;
  t.tm_mday = 9;
  t.tm_hour = 7;
  t.tm_min = 5;
  t.tm_sec = 2;
  t.tm_wday = 0;
  t.tm_yday = 67;
  return t;
}
constexpr wall_time march_time{std::chrono::microseconds(1234)};

// What the reference's outcome is called in the fixture, and here.
struct outcome {
  std::string kind, text;
  bool operator==(const outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const outcome& o) { return out << o.kind << ": " << o.text; }

outcome expected(const json::object& c) {
  for (const char* kind : {"text", "raised"})
    if (auto* v = c.if_contains(kind)) return {kind, json::value_to<std::string>(*v)};
  return {"error", ""};
}

outcome rendered(const std::string& source, const std::vector<chat_message>& messages, std::string* why = nullptr) {
  chat_template::special_tokens tokens;
  for (auto& [k, v] : fixture().at("tokens").as_object()) tokens.emplace_back(k, json::value_to<std::string>(v));
  try {
    auto out = chat_template::parse(source, "t", tokens).render(messages, march_time, march);
    if (out) return {"text", *out};
    if (why) *why = out.error().what;
    return {out.error().raised ? "raised" : "error", out.error().raised ? out.error().what : ""};
  } catch (const config_error& e) {
    if (why) *why = e.what();
    return {"error", ""};
  }
}

const std::vector<chat_message> hello{{"user", "Hello"}};

std::string refusal(const std::string& source) {
  return config_error_of([&] { chat_template::parse(source, "t"); });
}

// The error of rendering.
std::string failure(const std::string& source, const std::vector<chat_message>& messages = hello) {
  auto out = chat_template::parse(source, "t").render(messages, march_time, march);
  return out ? "[" + *out + "]" : out.error().what;
}

}  // namespace

TEST_CASE("chats are rendered as the reference does, by templates of the forms that checkpoints have") {
  auto& chats = fixture().at("chats").as_array();
  std::size_t n = 0;
  for (auto& [name, source] : fixture().at("templates").as_object()) {
    for (auto& chat : chats) {
      auto& c = fixture().at("rendered").as_array().at(n++).as_object();
      INFO(c.at("name").as_string());
      std::string why;
      CHECK(rendered(json::value_to<std::string>(source), messages_of(chat), &why) == expected(c));
      INFO(why);
    }
  }
  CHECK(n == fixture().at("rendered").as_array().size());
}

TEST_CASE("expressions, statements and white space are as in the reference, and its errors are errors") {
  const auto messages = messages_of(fixture().at("snippet_messages"));
  for (auto& v : fixture().at("snippets").as_array()) {
    auto& c = v.as_object();
    auto source = json::value_to<std::string>(c.at("template"));
    std::string why;
    auto got = rendered(source, messages, &why);
    INFO(source);
    INFO(why);
    CHECK(got == expected(c));
  }
}

TEST_CASE("what is not known is refused when the template is read, with its line and its name") {
  struct {
    std::string source, error;
  } table[] = {
      {"a\n{% include 'x' %}", "t: line 2: the statement include is not supported"},
      {"{% call f() %}{% endcall %}", "t: line 1: the statement call is not supported"},
      {"{% with a = 1 %}{% endwith %}", "t: line 1: the statement with is not supported"},
      {"{% block x %}{% endblock %}", "t: line 1: the statement block is not supported"},
      {"{% filter upper %}{% endfilter %}", "t: line 1: the statement filter is not supported"},
      {"{% do x %}", "t: line 1: the statement do is not supported"},
      {"\n\n{{ 'a' | urlize }}", "t: line 3: the filter urlize is not supported"},
      {"{% if false %}{{ 'a' | wordwrap }}{% endif %}", "t: line 1: the filter wordwrap is not supported"},
      {"{{ 'a' | e }}", "t: line 1: the filter e is not supported"},
      {"{{ 'a' | format(1) }}", "t: line 1: the filter format is not supported"},
      {"{{ ['a'] | map('urlize') }}", "t: line 1: the filter urlize is not supported"},
      {"{{ ['a'] | map(x) }}", "t: line 1: a filter that map is not given by its name"},
      {"{{ ['a'] | selectattr('x', 'nope') }}", "t: line 1: the test nope is not supported"},
      {"{{ 'a' is lower }}", "t: line 1: the test lower is not supported"},
      {"{{ 'a' is sameas 'a' }}", "t: line 1: the test sameas is not supported"},
      {"{{ 'a'.format(1) }}", "t: line 1: the method .format() is not supported"},
      {"{{ 'a'.swapcase() }}", "t: line 1: the method .swapcase() is not supported"},
      {"{{ ''.__class__ }}", "t: line 1: the attribute __class__"},
      {"{{ '%d' % 1 }}", "t: line 1: formatting with % is not supported"},
      {"{{ f(*x) }}", "t: line 1: arguments from a list or dict (*)"},
      {"{{ f(**x) }}", "t: line 1: arguments from a list or dict (**)"},
      {"{% for x in y recursive %}{% endfor %}", "t: line 1: a recursive loop"},
      {"{% macro f() %}{{ varargs }}{% endmacro %}", "t: line 1: the name varargs in a macro is not supported"},
      {"{% macro f() %}{{ caller() }}{% endmacro %}", "t: line 1: the name caller in a macro is not supported"},
      {"{{ cycler('a') }}", "t: line 1: the name cycler is not supported"},
      {"{{ self.x }}", "t: line 1: the name self is not supported"},
      {"{{ 'a'|safe + 'b' }}", "t: line 1: the filter safe is supported as the last of {{ }} only"},
      {"{% set x = 'a'|safe %}", "t: line 1: the filter safe is supported as the last of {{ }} only"},
      {"{{ 99999999999999999999 }}", "t: line 1: an integer of more than 64 bits"},
      {"{{ 1e400 }}", "t: line 1: the number 1e400"},
      {"{{ \u00e9 }}", "t: line 1: the character \u00e9"},
      {"{{ '\\N{BULLET}' }}", "t: line 1: the escape \\N in a string"},
      {"{{ '\\ud800' }}", "t: line 1: a string with half a character or none in it"},
      {"{% raw %}", "t: line 1: a raw block that does not end"},
      {"{% set x | default(y) %}{% endset %}", "t: line 1: the name y is not supported here"},
      {"\xff", "t: is not UTF-8"},
      {std::string((1 << 20) + 1, 'x'), "t: 1048577 bytes, more than the limit of 1048576"},
  };
  for (auto& row : table) CHECK(refusal(row.source) == row.error);
}

TEST_CASE("what only comes to light with its values fails then, and never gives other text than the reference") {
  CHECK(failure("{{ namespace }}").find("a function can't be printed") != std::string::npos);
  CHECK(failure("{{ [1]|map('string') }}").find("a generator can't be printed") != std::string::npos);
  CHECK(failure("{{ {}.items }}").find("a function can't be printed") != std::string::npos);
  CHECK(failure("{{ 5 .real }}").find("the attribute real of a int is not supported") != std::string::npos);
  CHECK(failure("{{ messages[0]['content'] % 1 }}").find("formatting with %") != std::string::npos);
  CHECK(failure("{{ '\u00df'|upper }}").find("changing the case of U+00DF is not supported") != std::string::npos);
  CHECK(failure("{{ 'A\u03a3'|lower }}").find("changing the case of U+03A3") != std::string::npos);
  CHECK(failure("{{ 9223372036854775807 + 1 }}").find("integers of more than 64 bits") != std::string::npos);
  CHECK(failure("{{ strftime_now('%Q') }}").find("the time format %Q is not supported") != std::string::npos);
  CHECK(failure("\n{{ 1 }}\n{{ nothing.x }}") == "the chat template, line 3: 'nothing' is undefined");
  CHECK(failure("{{ [1].append(2) }}") ==
        "the chat template, line 1: access to attribute 'append' of 'list' object is unsafe.");
  CHECK(failure("x", {}) == "there is no message");
  CHECK(failure("x", {{"user", "\xff"}}) == "a message is not UTF-8");
}

TEST_CASE("a template that would run for ever, nest for ever or fill the memory ends with an error") {
  auto in = [](const std::string& text, std::string_view part) { return text.find(part) != text.npos; };
  const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  CHECK(in(failure(loops), "takes more than 2000000 steps"));
  CHECK(in(failure("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "nested too deep"));
  CHECK(in(failure("{% set n = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}"
                   "{% endfor %}"),
           "makes more than 96 MiB of text"));
  CHECK(in(failure("{{ 'a' * 999999999999 }}"), "too long"));
  CHECK(in(failure("{{ [1] * 999999999 }}"), "too long"));
  CHECK(in(failure("{{ [1, 2] * 9999999 }}"), "takes more than"));
  CHECK(in(failure("{{ range(999999999)|list }}"), "Range too big"));
  CHECK(in(failure("{{ ('a' * 100000).replace('', 'b' * 1000000) }}"), "MiB of text"));
  CHECK(in(failure("{{ 'a' * 9000000 }}{% for i in range(99999) %}{{ messages[0].content * 99999 }}{% endfor %}"),
           "MiB"));
  CHECK(in(failure("{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}"),
           "values nested more than"));
  CHECK(
      in(failure("{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = n.x|map('list') %}{% endfor %}"),
         "values nested more than"));
  CHECK(in(failure("{% set n = namespace(x=0) %}{% for i in range(9999) %}{% for j in [n.x] %}{% set n.x = loop %}"
                   "{% endfor %}{% endfor %}"),
           "values nested more than"));
  CHECK(in(failure("{% set n = namespace() %}{% set n.me = n %}{{ n }}"), "nested too deep"));
  CHECK(in(refusal("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"), "too deep"));
  CHECK(in(refusal("{{ " + std::string(150, '(') + "1" + std::string(150, ')') + " }}"), "nested more than"));
  CHECK(in(refusal("{{ " + std::string(100'000, '-') + "1 }}"), "nested more than"));
  std::string sum = "{{ 1", nots = "{{ ", ifs, elifs = "{% if 0 %}", dots = "{{ x", text = "{{ 1";
  for (int i = 0; i < 100'000; ++i) {
    sum += "+1";
    dots += ".x";
    text += "~1";
    if (i < 20'000) nots += "not ", ifs += "{% if 1 %}", elifs += "{% elif 0 %}";
  }
  CHECK(in(refusal(sum + " }}"), "parts in a row"));
  CHECK(in(refusal(dots + " }}"), "parts in a row"));
  CHECK(in(refusal(nots + "1 }}"), "nested more than"));
  CHECK(in(refusal(ifs), "nested more than"));
  CHECK(failure(elifs + "{% else %}x{% endif %}") == "[x]");
  CHECK(failure(text + " }}").size() == 100'003);
}

TEST_CASE("nothing is replaced as often as asked for") {
  CHECK(failure("{{ 'abcd'|replace('', '-', 1) }} {{ 'abcd'.replace('', '-', 2) }} {{ 'ab'.replace('', '-', 0) }}") ==
        "[-abcd -a-bcd ab]");
}

TEST_CASE("what outlives its loop or macro is still there, or fails") {
  CHECK(failure("{% set n = namespace() %}{% macro f(xs) %}{% for x in xs if x > 1 %}{% set n.l = loop %}{% break %}"
                "{% endfor %}{% endmacro %}{{ f([2, 0, 3]) }}{{ n.l.nextitem }}{{ n.l.last }}{{ n.l.length }}") ==
        "[3False2]");
  CHECK(failure("{% set n = namespace() %}{% macro f(y) %}{% macro g() %}{{ y }}{% endmacro %}{% set n.g = g %}"
                "{% endmacro %}{{ f(1) }}{% set g = n.g %}{{ g() }}{{ f(2) }}{{ g() }}") == "[11]");
}

TEST_CASE("the template of a folder: its file, or tokenizer_config.json's, or the plain form") {
  const auto text_of = [](const temp_dir& dir) {
    return chat_template::load(dir.path()).render(hello, march_time).value();
  };
  temp_dir dir;
  CHECK(!chat_template::load(dir.path()).from_checkpoint());
  CHECK(text_of(dir) == "User: Hello\n\nAssistant:");
  CHECK(chat_template::load(dir.path()).stop_strings() == chat_stop_strings());
  CHECK(!chat_template::load(tiny()).from_checkpoint());
  dir.write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": null})");
  CHECK(!chat_template::load(dir.path()).from_checkpoint());
  dir.write("tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": true, "pad_token": null,
    "chat_template": "{{ bos_token }}{{ pad_token is defined }}{{ messages[0].content }}"})");
  CHECK(text_of(dir) == "<s>FalseHello");
  CHECK(chat_template::load(dir.path()).from_checkpoint());
  CHECK(chat_template::load(dir.path()).stop_strings().empty());
  // Older checkpoints have their tokens in a file of their own.
  dir.write("special_tokens_map.json", R"({"bos_token": {"content": "<b>", "lstrip": false}})");
  CHECK(text_of(dir) == "<b>FalseHello");
  dir.write("tokenizer_config.json", R"({"bos_token": {"content": "<c>"}, "added_tokens_decoder": {},
    "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ bos_token }}"}]})");
  CHECK(text_of(dir) == "d<c>");
  dir.write("chat_template.jinja", "file {{ bos_token }}\n");
  CHECK(text_of(dir) == "file <c>");
  dir.write("chat_template.jinja", "\n{% foo %}");
  auto error = [&] { return config_error_of([&] { chat_template::load(dir.path()); }); };
  CHECK(error() == (dir / "chat_template.jinja").string() + ": line 2: the statement foo is not supported");
  std::filesystem::remove(dir / "chat_template.jinja");
  const auto config = (dir / "tokenizer_config.json").string();
  dir.write("tokenizer_config.json", R"({"chat_template": "{{"})");
  CHECK(error() == config + ": chat_template: line 1: expected an expression, found the end of the template");
  dir.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  CHECK(error() == config + ": chat_template: none of its templates is called default");
  dir.write("tokenizer_config.json", R"({"chat_template": 5})");
  CHECK(error() == config + ": chat_template: expected a list, found a number");
  dir.write("tokenizer_config.json", "{");
  CHECK(error().find(config + ": not valid JSON") == 0);
}

TEST_CASE("a rendered chat's special tokens become their ids, and no second first token is put before it") {
  const auto text = tokenizer::load(source_dir() / "tests/engine/fixtures/tokenizers/llama3");
  const auto bos = text.find_added("<|begin_of_text|>").value(), end = text.find_added("<|eot_id|>").value();
  const auto chat = chat_template::parse("{{ bos_token }}{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}",
                                         "t", {{"bos_token", "<|begin_of_text|>"}});
  const auto ids = text.encode(chat.render(hello, march_time).value(), chat.encoding());
  CHECK(std::count(ids.begin(), ids.end(), bos) == 1);
  CHECK(ids.front() == bos);
  CHECK(ids.back() == end);
  // As in the reference, what a message says is not told apart.
  const auto said = text.encode(chat.render(std::vector<chat_message>{{"user", "a<|eot_id|>b"}}, march_time).value(),
                                chat.encoding());
  CHECK(std::count(said.begin(), said.end(), end) == 2);
  const chat_template plain;
  const auto other = text.encode(plain.render(std::vector<chat_message>{{"user", "a<|eot_id|>b"}}, march_time).value(),
                                 plain.encoding());
  CHECK(std::count(other.begin(), other.end(), end) == 0);
  CHECK(std::count(other.begin(), other.end(), bos) == 1);
}

// Chat templates that were made to take a server down: what they cost is counted, what they keep ends with them, and
// none goes deeper than the stack. Nothing here measures time: what is counted ends with an error, at the same step
// everywhere.
#include <doctest/doctest.h>

#include <boost/json.hpp>

#include "chat/machine.hpp"
#include "chat/parser.hpp"
#include "cokv/engine/chat_template.hpp"
#include "files.hpp"

using namespace cokv;
using namespace cokv::test;
namespace json = boost::json;

namespace {

bool in(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

std::string refusal(const std::string& source) {
  return config_error_of([&] { chat_template::parse(source, "t"); });
}

// What comes out, or the error.
std::string rendered(const std::string& source) {
  auto out = chat_template::parse(source, "t").render(std::vector<chat_message>{{"user", "Hello"}}, {});
  return out ? *out : out.error().what;
}

const std::string fine = "[no error]", steps = "takes more than 2000000 steps",
                  memory = "makes more than 96 MiB of text";

std::string times(std::size_t n, const std::string& lines) {
  return "{% for i in range(" + std::to_string(n) + ") %}" + lines + "{% endfor %}";
}

// "n0, n1, ...", each with what stands before and after it.
std::string names(std::size_t n, const std::string& before = "", const std::string& after = "") {
  std::string out;
  for (std::size_t i = 0; i < n; ++i) out += (i ? ", " : "") + before + "n" + std::to_string(i) + after;
  return out;
}

chat::value text_value(std::string_view s) { return chat::value(std::make_shared<const std::string>(s)); }

const chat::time_text no_time = [](std::string_view) { return std::string(); };

}  // namespace

TEST_CASE("chat bounds: a range that is sliced has the reference's numbers, or is refused") {
  CHECK(rendered("{{ range(10)[::-3] }}{{ range(10)[2:-1] }}{{ range(0, 10, 3)[:] }}{{ range(5)[9:] }}") ==
        "range(9, -1, -3)range(2, 9)range(0, 12, 3)range(5, 5)");
  CHECK(rendered("{{ range(1, 1, 2**60)[::-1] }}") ==
        "range(-1152921504606846975, -1152921504606846975, -1152921504606846976)");
  for (std::string slice :
       {"range(0, 2**60, 2**59)[::-(2**40)]", "range(0, 2**60, 2**59)[::2**40]", "range(0, 2**60, 2**60-1)[1:]",
        "range(2**60, -2**60, -(2**60))[::-3]", "range(3)[::2**50]", "range(3)[::-(2**62)]"})
    CHECK(in(rendered("{{ " + slice + " | length }}"), "range() of numbers this large is not supported"));
  CHECK(in(rendered("{% set n = namespace(r=range(1, 1, 2**59)) %}" + times(99, "{% set n.r = n.r[::-2] %}")),
           "range() of numbers this large"));
}

TEST_CASE("chat bounds: names are short, and what is told of them is counted as text") {
  const std::string longest(200, 'a'), longer(201, 'a');
  for (std::string form : {"\n{{ @ }}", "\n{{ x.@ }}", "\n{% set @ = 1 %}", "\n{{ f(@=1) }}", "\n{% @ %}",
                           "\n{% macro @() %}{% endmacro %}", "\n{% macro m(@) %}{% endmacro %}"})
    CHECK(refusal(form.replace(form.find('@'), 1, longer)) == "t: line 2: a name of more than 200 letters");
  CHECK(rendered("{{ " + longest + " }}{% macro m(" + longest + ") %}{% endmacro %}").empty());

  chat::variables given;
  auto bytes = [&](const std::string& source) {
    auto p = chat::parse_template(source);
    chat::machine m(p, given, no_time);
    m.run();
    return m.cost.bytes();
  };
  CHECK(bytes(times(1000, "{% set x = " + longest + " %}")) > 200'000);
  CHECK(bytes(times(1000, "{% set x = {}." + longest + " %}")) > 100'000);
  CHECK(bytes("{% macro m(" + longest + ") %}{% endmacro %}" + times(1000, "{{ m() }}")) > 200'000);
  CHECK(bytes(times(1000, "{% set x = loop." + longest + " %}")) > 100'000);
  // What a macro was given outlives it when it defines another.
  CHECK(in(rendered("{% macro m(" + longest + ") %}{% macro q() %}{% endmacro %}{% endmacro %}" +
                    times(99'999, "{{ m() }}")),
           steps));
  CHECK(in(rendered("{% set d = {'a' * 999999: 1} %}" + times(9'999, "{% set x = namespace(d) %}")), memory));
}

TEST_CASE("chat bounds: work that goes through many names or much text counts, wherever it is done") {
  const std::string s = "{% set s = 'a' * 999999 %}{% set t = ('a' * 999998) ~ 'b' %}";
  const std::string all = names(20'000), keys = names(1'000, "'", "': 1");
  const std::pair<const char*, std::string> table[] = {
      {"a filtered loop's variables", times(9'999, "{% for x in [] if [" + all + "] %}{% endfor %}")},
      {"a loop's variables when it is left", times(9'999, "{% for x in [] %}{{ [" + all + "] }}{% endfor %}")},
      {"characters to strip", s + times(9, "{{ s.strip(t) }}")},
      {"characters to trim", s + times(9, "{{ s|trim(t) }}")},
      {"characters that are not there", s + times(999, "{{ '' if s.rstrip('\u20ac' * 99999) }}")},
      {"prefixes", s + "{{ s.startswith((t,) * 9999) }}"},
      {"suffixes", s + "{{ s.endswith((s[1:] ~ 'b', 'b' ~ s[1:]) * 9999) }}"},
      {"occurrences", "{% set s = 'ab' * 99999 %}" + times(99, "{{ s.count('ab') }}")},
      {"a namespace's names", "{% set n = namespace({" + keys + "}) %}" + times(9'999, "{{ n.n999 }}")},
      {"keys that are long and alike", s + "{% set d = {s: 1} %}" + times(999, "{{ d[t] }}")},
      {"names that are long and alike", s + "{% set n = namespace({s: 1}) %}" + times(999, "{{ n[t] }}")},
      {"what stands between nothing", s + times(999, "{{ []|join(s) }}")},
      {"what is replaced in nothing", s + times(999, "{{ ''|replace(s, s) }}")},
      {"an indent of nothing", s + times(999, "{{ 1|tojson(indent=s) }}")},
      {"separators of nothing", s + times(999, "{{ 1|tojson(separators=(s, s)) }}")},
      {"a path", "{% set p = 'a.' * 99999 %}{{ ([{}] * 99)|map(attribute=p, default={})|list }}"},
      {"parts", "{% set s = 'a ' * 4999999 %}{{ s.split()|length }}{{ s.split(' ')|length }}"},
      {"lines", "{% set s = '\\n' * 4999999 %}{{ s.splitlines()|length }}{{ s|indent }}"},
  };
  for (auto& [what, source] : table) {
    CAPTURE(what);
    const auto error = rendered(source);
    CHECK_MESSAGE(in(error, steps), error.substr(0, 200));
  }
  CHECK(in(rendered("{{ strftime_now('%c' * 3000) }}"), "a time format of more than 4096 bytes"));
  CHECK(rendered("{{ '' * 2**62 }}{{ [] * 2**62 }}") == "[]");
  // Text that is longer when it is written otherwise.
  CHECK(in(rendered("{% set s = '\\x01' * 15000000 %}{{ [s, s] }}"), memory));
  CHECK(in(rendered("{% set s = '\\x01' * 15000000 %}{{ s|tojson }}"), steps));
  // An error that holds what it was given.
  CHECK(rendered("{{ raise_exception('\u20ac' * 9999) }}").size() < 5'000);
}

TEST_CASE("chat bounds: what a template may name has an end, which is told with its line") {
  // Every branch copies the names before it.
  std::string ifs;
  for (int i = 0; i < 25'000; ++i) ifs += "\n{% if x %}{% endif %}";
  CHECK(in(refusal("{{ [" + names(60'000) + "] }}" + ifs), "too many names in too many branches to be told apart"));
  CHECK(refusal("{{ [" + names(60'000) + "] }}" + ifs).starts_with("t: line 4: "));
  std::string elifs = "{% if x %}", nested;
  for (int i = 0; i < 2'000; ++i) elifs += "\n{% elif x %}";
  for (int i = 0; i < 39; ++i) nested += "{% if x %}";
  CHECK(in(refusal("{{ [" + names(10'000) + "] }}" + elifs + "{% endif %}"), "too many names in too many branches"));
  for (int i = 0; i < 39; ++i) nested += "{% endif %}";
  CHECK(in(refusal("{{ [" + names(10'000) + "] }}" + nested), "too many names in too many branches"));
  // More than any checkpoint's template has.
  CHECK(refusal("{{ [" + names(200) + "] }}" + ifs.substr(0, ifs.size() / 50)) == fine);

  const auto most = names(200), more = names(201);
  CHECK(refusal("{% macro m(" + most + ") %}{% endmacro %}") == fine);
  CHECK(refusal("\n{% macro m(" + more + ") %}{% endmacro %}") == "t: line 2: a macro of more than 200 parameters");
  CHECK(refusal("{{ f(" + names(200, "", "=1") + ") }}") == fine);
  CHECK(refusal("\n{{ f(" + names(201, "", "=1") + ") }}") == "t: line 2: more than 200 arguments given by name");

  temp_dir dir;
  auto with_tokens = [&](int n) {
    std::string out = R"({"chat_template": "x")";
    for (int i = 0; i < n; ++i) out += ", \"n" + std::to_string(i) + "_token\": \"x\"";
    dir.write("tokenizer_config.json", out + "}");
    return config_error_of([&] { chat_template::load(dir.path()); });
  };
  CHECK(with_tokens(256) == fine);
  CHECK(in(with_tokens(257), "n256_token: more than 256 special tokens"));
}

TEST_CASE("chat bounds: nothing outlives its chat, also what holds itself") {
  for (std::string source :
       {"{% for x in [ns, ns, t]|map(attribute='l') %}{% set ns.l = loop %}{% endfor %}",
        "{% for x in [ns, ns, ns, t]|map(attribute='l') %}{% set ns.l = loop %}{% set y = loop.length %}{% endfor %}",
        "{% for x in [ns, ns, t]|map(attribute='l') if 1 or t %}{% set ns.l = loop %}{% endfor %}",
        "{% set ns.l = [ns, t]|map(attribute='l')|unique %}{% set x = ns.l|first %}"}) {
    CAPTURE(source);
    auto t = std::make_shared<const std::string>("kept");
    {
      chat::variables given{{"t", chat::value(t)}};
      auto p = chat::parse_template("{% set ns = namespace(l=none) %}" + source);
      chat::machine m(p, given, no_time);
      m.run();
    }
    CHECK(t.use_count() == 1);
  }
}

TEST_CASE("chat bounds: loops and streams that hold each other in a row are neither read nor destroyed by recursion") {
  const std::string ns = "{% set n = namespace(l=none) %}";
  CHECK(rendered(ns + times(50'000, "{% for x in [n]|map(attribute='l') %}{% set n.l = loop %}{% endfor %}") + "ok") ==
        "ok");
  CHECK(rendered(ns +
                 times(50'000,
                       "{% set s = [n]|map(attribute='l')|unique %}{% set x = s|first %}"
                       "{% set n.l = s %}") +
                 "ok") == "ok");
  CHECK(in(rendered(ns + times(9'999, "{% set n.l = [namespace(l=n.l)]|map(attribute='l')|map('first') %}") +
                    "{{ n.l|first }}"),
           "nested too deep"));
  // As in Python.
  CHECK(in(rendered(ns + "{% set n.l = ([n] * 99999)|map(attribute='l')|map('first') %}{{ n.l|first }}"),
           "generator already executing"));
}

TEST_CASE("chat bounds: the chats that are rendered as the reference does stay far below them") {
  const auto fixture = json::parse(slurp(source_dir() / "tests/engine/fixtures/chat/cases.json"));
  auto cost = [&](const json::string& source, const std::vector<chat_message>& messages) {
    auto p = chat::parse_template({source.data(), source.size()});
    chat::variables given;
    for (auto& [k, v] : fixture.at("tokens").as_object())
      given.emplace_back(k, text_value(json::value_to<std::string>(v)));
    chat::machine m(p, given, no_time);
    chat::values list;
    for (auto& one : messages)
      list.push_back(chat::make_mapping(
          {{text_value("role"), text_value(one.role)}, {text_value("content"), text_value(one.content)}}, m.cost));
    given.emplace_back("messages", chat::make_list(std::move(list), m.cost));
    given.emplace_back("add_generation_prompt", chat::value(true));
    m.run();
    return std::pair(m.cost.steps(), m.cost.bytes());
  };
  std::vector<chat_message> many;  // as many as cokv serve takes in a request
  for (int i = 0; i < 4095; ++i) many.push_back({i % 2 ? "assistant" : "user", "Who was Kohath?"});
  const std::vector<chat_message> large{{"user", std::string(8 << 20, 'a')}};  // and as much
  for (auto& [name, source] : fixture.at("templates").as_object()) {
    CAPTURE(name);
    auto [steps, bytes] = cost(source.as_string(), many);
    CHECK(steps < chat::budget::most_steps / 3);
    std::tie(steps, bytes) = cost(source.as_string(), large);
    CHECK(steps < chat::budget::most_steps / 2);
    CHECK(bytes < chat::budget::most_bytes / 2);
  }
}

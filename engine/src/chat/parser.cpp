#include "parser.hpp"

#include <algorithm>
#include <initializer_list>

#include "cokv/runtime/detail/json_file.hpp"
#include "names.hpp"
#include "scopes.hpp"

namespace cokv::chat {

namespace {

using std::string_view;
using names = std::initializer_list<string_view>;

constexpr std::uint32_t deepest_expression = 150, deepest_block = 40;
constexpr std::size_t most_named = 200;  // arguments of a call, parameters of a macro: each is compared with each

bool among(string_view name, names list) { return std::find(list.begin(), list.end(), name) != list.end(); }

class parser {
 public:
  explicit parser(string_view source) : tokens_(tokenize(source)) {}

  body run() {
    auto out = lines({});
    return out;
  }

 private:
  // Expressions and blocks inside each other, whatever they are.
  struct nested {
    nested(parser& p, std::uint32_t& depth, std::uint32_t most, const char* what) : depth_(depth) {
      if (++depth_ > most) p.refuse(std::string(what) + " nested more than " + std::to_string(most) + " deep");
    }
    ~nested() { --depth_; }
    std::uint32_t& depth_;
  };

  [[noreturn]] void refuse(const std::string& what) const { throw syntax_error(now().line, what); }
  [[noreturn]] static void refuse(std::uint32_t line, const std::string& what) { throw syntax_error(line, what); }
  [[noreturn]] void no_expression() const { refuse("expected an expression, found " + described()); }

  const token& now() const { return tokens_[at_]; }
  const token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool at_op(string_view s) const { return now().kind == token_kind::op && now().text == s; }
  bool at_op(names list) const { return now().kind == token_kind::op && among(now().text, list); }
  bool at_name(string_view s) const { return now().kind == token_kind::name && now().text == s; }
  bool at_name(names list) const { return now().kind == token_kind::name && among(now().text, list); }
  bool skip_op(string_view s) { return at_op(s) && (take(), true); }
  bool skip_name(string_view s) { return at_name(s) && (take(), true); }
  void need_op(string_view s) {
    if (!skip_op(s)) refuse("expected '" + std::string(s) + "', found " + described());
  }
  void need(token_kind k, const char* what) {
    if (now().kind != k) refuse(std::string("expected ") + what + ", found " + described());
    take();
  }
  std::string need_name() {
    if (now().kind != token_kind::name) refuse("expected a name, found " + described());
    return take().text;
  }
  std::string described() const {
    switch (now().kind) {
      case token_kind::end:
        return "the end of the template";
      case token_kind::data:
        return "text";
      case token_kind::variable_begin:
        return "'{{'";
      case token_kind::variable_end:
        return "'}}'";
      case token_kind::block_begin:
        return "'{%'";
      case token_kind::block_end:
        return "'%}'";
      case token_kind::string:
        return "a string";
      case token_kind::integer:
      case token_kind::real:
        return "a number";
      default:
        return "'" + detail::printable(now().text) + "'";
    }
  }

  // ---- expressions

  node_ptr make(op what, std::uint32_t line) {
    auto n = std::make_unique<node>();
    n->what = what;
    n->line = line;
    return n;
  }
  // Depth is counted: a long chain of operators is a deep tree, and it is evaluated by recursion.
  node_ptr with(node_ptr n, node_ptr part) {
    if (part) n->depth = std::max(n->depth, part->depth + 1);
    if (n->depth > deepest_expression)
      refuse(n->line, "an expression of more than " + std::to_string(deepest_expression) + " parts in a row");
    n->parts.push_back(std::move(part));
    return n;
  }
  template <class... Parts>
  node_ptr make(op what, std::uint32_t line, Parts... parts) {
    auto n = make(what, line);
    ((n = with(std::move(n), std::move(parts))), ...);
    return n;
  }
  node_ptr constant(std::uint32_t line, value v) {
    auto n = make(op::constant, line);
    n->constant = std::move(v);
    return n;
  }

  node_ptr expression(bool conditional = true) {
    nested guard(*this, expressions_, 120, "expressions");
    return conditional ? inline_if() : either();
  }

  node_ptr inline_if() {
    auto line = now().line;
    auto first = either();
    while (skip_name("if")) {
      auto condition = either();
      auto other = skip_name("else") ? expression() : nullptr;
      first = make(op::conditional, line, std::move(condition), std::move(first), std::move(other));
      line = now().line;
    }
    return first;
  }

  node_ptr either() {
    auto line = now().line;
    auto left = both();
    while (skip_name("or")) left = make(op::either, line, std::move(left), both());
    return left;
  }

  node_ptr both() {
    auto line = now().line;
    auto left = negation();
    while (skip_name("and")) left = make(op::both, line, std::move(left), negation());
    return left;
  }

  node_ptr negation() {
    if (!at_name("not")) return compare();
    nested guard(*this, expressions_, 120, "expressions");
    auto line = take().line;
    return make(op::negation, line, negation());
  }

  node_ptr compare() {
    auto line = now().line;
    auto first = sum();
    node_ptr out;
    for (;;) {
      std::string sign;
      if (at_op({"==", "!=", "<", "<=", ">", ">="})) {
        sign = take().text;
      } else if (skip_name("in")) {
        sign = "in";
      } else if (at_name("not") && ahead().kind == token_kind::name && ahead().text == "in") {
        take();
        take();
        sign = "not in";
      } else {
        break;
      }
      if (!out) out = make(op::compare, line, std::move(first));
      out->signs.push_back(sign);
      out = with(std::move(out), sum());
    }
    return out ? std::move(out) : std::move(first);
  }

  node_ptr sum() {
    auto line = now().line;
    auto left = concat();
    while (at_op({"+", "-"})) {
      auto what = take().text == "+" ? op::add : op::subtract;
      left = make(what, line, std::move(left), concat());
    }
    return left;
  }

  node_ptr concat() {
    auto line = now().line;
    auto first = product();
    if (!at_op("~")) return first;
    auto out = make(op::concat, line, std::move(first));
    while (skip_op("~")) out = with(std::move(out), product());
    return out;
  }

  node_ptr product() {
    auto line = now().line;
    auto left = power();
    while (at_op({"*", "/", "//", "%"})) {
      auto sign = take().text;
      auto what = sign == "*" ? op::multiply : sign == "/" ? op::divide : sign == "//" ? op::floor_divide : op::modulo;
      if (what == op::modulo && left->what == op::constant && left->constant.is(kind::text))
        refuse(line, "formatting with % is not supported");
      left = make(what, line, std::move(left), power());
    }
    return left;
  }

  node_ptr power() {
    auto line = now().line;
    auto left = unary(true);
    while (skip_op("**")) left = make(op::power, line, std::move(left), unary(true));
    return left;
  }

  node_ptr unary(bool filters) {
    nested guard(*this, expressions_, 120, "expressions");
    auto line = now().line;
    node_ptr out;
    if (skip_op("-")) {
      out = make(op::minus, line, unary(false));
    } else if (skip_op("+")) {
      out = make(op::plus, line, unary(false));
    } else {
      out = primary();
    }
    out = postfix(std::move(out));
    return filters ? filtered(std::move(out)) : std::move(out);
  }

  node_ptr primary() {
    auto line = now().line;
    switch (now().kind) {
      case token_kind::name: {
        auto name = take().text;
        if (name == "true" || name == "True" || name == "false" || name == "False")
          return constant(line, value(name[0] == 't' || name[0] == 'T'));
        if (name == "none" || name == "None") return constant(line, value(none{}));
        auto n = make(op::name, line);
        n->text = std::move(name);
        return n;
      }
      case token_kind::string: {
        std::string all;
        while (now().kind == token_kind::string) all += take().text;
        return constant(line, make_text(std::move(all), cost_));
      }
      case token_kind::integer:
        return constant(line, value(take().integer));
      case token_kind::real:
        return constant(line, value(take().real));
      case token_kind::op:
        break;
      default:
        no_expression();
    }
    if (skip_op("(")) {
      auto out = tuple(true, true, {});
      need_op(")");
      return out;
    }
    if (skip_op("[")) {
      auto out = make(op::list, line);
      while (!at_op("]")) {
        if (!out->parts.empty()) need_op(",");
        if (at_op("]")) break;
        out = with(std::move(out), expression());
      }
      need_op("]");
      return out;
    }
    if (skip_op("{")) {
      auto out = make(op::dict, line);
      while (!at_op("}")) {
        if (!out->parts.empty()) need_op(",");
        if (at_op("}")) break;
        out = with(std::move(out), expression());
        need_op(":");
        out = with(std::move(out), expression());
      }
      need_op("}");
      return out;
    }
    no_expression();
  }

  bool tuple_ends(names more) const {
    return now().kind == token_kind::variable_end || now().kind == token_kind::block_end || at_op(")") || at_name(more);
  }

  node_ptr tuple(bool conditional, bool in_brackets, names ends) {
    auto line = now().line;
    auto out = make(op::tuple, line);
    bool commas = false;
    for (;;) {
      if (!out->parts.empty()) need_op(",");
      if (tuple_ends(ends)) break;
      out = with(std::move(out), expression(conditional));
      if (!at_op(",")) break;
      commas = true;
    }
    if (commas) return out;
    if (!out->parts.empty()) return std::move(out->parts.front());
    if (!in_brackets) refuse("expected an expression, found " + described());
    return out;
  }

  node_ptr postfix(node_ptr n) {
    for (;;) {
      if (at_op(".") || at_op("[")) {
        n = subscript(std::move(n));
      } else if (at_op("(")) {
        n = call(std::move(n));
      } else {
        return n;
      }
    }
  }

  node_ptr filtered(node_ptr n) {
    for (;;) {
      if (at_op("|")) {
        n = filter(std::move(n));
      } else if (at_name("is")) {
        n = test(std::move(n));
      } else if (at_op("(")) {
        n = call(std::move(n));
      } else {
        return n;
      }
    }
  }

  node_ptr subscript(node_ptr of) {
    auto line = now().line;
    if (skip_op(".")) {
      if (now().kind == token_kind::integer) {
        auto index = constant(line, value(take().integer));
        return make(op::item, line, std::move(of), std::move(index));
      }
      auto name = need_name();
      if (name.starts_with("__")) refuse(line, "the attribute " + name);
      auto out = make(op::attribute, line, std::move(of));
      out->text = std::move(name);
      return out;
    }
    need_op("[");
    std::vector<node_ptr> parts;
    bool slices = false;
    while (!at_op("]")) {
      if (!parts.empty()) need_op(",");
      parts.push_back(subscribed());
      slices |= parts.back()->what == op::slice;
    }
    need_op("]");
    if (parts.size() == 1 && slices) {
      auto out = std::move(parts.front());
      out->depth = std::max(out->depth, of->depth + 1);
      if (out->depth > deepest_expression) refuse(line, "an expression of too many parts in a row");
      out->parts.insert(out->parts.begin(), std::move(of));
      return out;
    }
    if (slices) refuse(line, "a slice among several subscripts");
    if (parts.size() == 1) return make(op::item, line, std::move(of), std::move(parts.front()));
    auto all = make(op::tuple, line);
    for (auto& p : parts) all = with(std::move(all), std::move(p));
    return make(op::item, line, std::move(of), std::move(all));
  }

  // An index, or a slice whose parts are start, end and step.
  node_ptr subscribed() {
    auto line = now().line;
    node_ptr start, end, step;
    if (!at_op(":")) {
      start = expression();
      if (!at_op(":")) return start;
    }
    need_op(":");
    if (!at_op({":", "]", ","})) end = expression();
    if (skip_op(":") && !at_op({"]", ","})) step = expression();
    return make(op::slice, line, std::move(start), std::move(end), std::move(step));
  }

  node_ptr arguments(node_ptr to) {
    need_op("(");
    bool first = true;
    while (!at_op(")")) {
      if (!first) {
        need_op(",");
        if (at_op(")")) break;
      }
      first = false;
      if (at_op({"*", "**"})) refuse("arguments from a list or dict (" + now().text + ")");
      if (now().kind == token_kind::name && ahead().kind == token_kind::op && ahead().text == "=") {
        auto name = take().text;
        take();
        for (auto& [other, v] : to->keywords)
          if (other == name) refuse("the argument " + name + " given twice");
        if (to->keywords.size() == most_named)
          refuse("more than " + std::to_string(most_named) + " arguments given by name");
        auto given = expression();
        to->depth = std::max(to->depth, given->depth + 1);
        to->keywords.emplace_back(std::move(name), std::move(given));
      } else {
        if (!to->keywords.empty()) refuse("an argument without a name after one with a name");
        to = with(std::move(to), expression());
      }
    }
    need_op(")");
    return to;
  }

  node_ptr call(node_ptr of) {
    auto line = now().line;
    if (of->what == op::attribute && !known_method(of->text))
      refuse(line, "the method ." + detail::printable(of->text) + "() is not supported");
    return arguments(make(op::call, line, std::move(of)));
  }

  std::string dotted_name() {
    auto name = need_name();
    while (skip_op(".")) name += '.' + need_name();
    return name;
  }

  // A filter or test that is named by a string, as in map('upper').
  static void check_named(const node& n) {
    const bool of_attribute = n.text == "selectattr" || n.text == "rejectattr";
    const bool by_test = of_attribute || n.text == "select" || n.text == "reject";
    if (!by_test && n.text != "map") return;
    const std::size_t at = of_attribute ? 2 : 1;
    if (n.parts.size() <= at) return;
    auto& named = *n.parts[at];
    if (named.what != op::constant || !named.constant.is(kind::text))
      refuse(n.line, "a " + std::string(by_test ? "test" : "filter") + " that " + n.text + " is not given by its name");
    auto name = std::string(named.constant.str());
    if (by_test ? !known_test(name) : !known_filter(name) || name == "safe")
      refuse(n.line,
             "the " + std::string(by_test ? "test " : "filter ") + detail::printable(name) + " is not supported");
  }

  node_ptr filter(node_ptr of) {
    need_op("|");
    auto line = now().line;
    auto name = dotted_name();
    if (!known_filter(name)) refuse(line, "the filter " + detail::printable(name) + " is not supported");
    auto out = make(op::filter, line, std::move(of));
    out->text = name;
    if (at_op("(")) out = arguments(std::move(out));
    check_named(*out);
    if (name == "safe") ++safes_;
    return out;
  }

  node_ptr test(node_ptr of) {
    auto line = take().line;
    bool negated = skip_name("not");
    auto name = dotted_name();
    if (!known_test(name)) refuse(line, "the test " + detail::printable(name) + " is not supported");
    auto out = make(op::test, line, std::move(of));
    out->text = std::move(name);
    if (at_op("(")) {
      out = arguments(std::move(out));
    } else if (starts_argument()) {
      if (at_name("is")) refuse("several tests in a row");
      out = with(std::move(out), postfix(primary()));
    }
    return negated ? make(op::negation, line, std::move(out)) : std::move(out);
  }

  bool starts_argument() const {
    switch (now().kind) {
      case token_kind::name:
        return !at_name({"else", "or", "and"});
      case token_kind::string:
      case token_kind::integer:
      case token_kind::real:
        return true;
      default:
        return at_op({"[", "{"});
    }
  }

  // ---- statements

  target as_target(const node& n) const {
    if (n.what == op::name) {
      if (n.text == "loop" && in_for_ > 0) refuse(n.line, "an assignment to loop");
      return {target::form::name, n.line, n.text, {}, {}, {}};
    }
    if (n.what != op::tuple) refuse(n.line, "an assignment to what is no name");
    target out{target::form::tuple, n.line, {}, {}, {}, {}};
    for (auto& p : n.parts) out.parts.push_back(as_target(*p));
    return out;
  }

  target simple_target(bool attributes) {
    auto line = now().line;
    if (attributes && now().kind == token_kind::name && ahead().kind == token_kind::op && ahead().text == ".") {
      auto name = take().text;
      take();
      return {target::form::attribute, line, name, need_name(), {}, {}};
    }
    return as_target(*primary());
  }

  target assigned(bool attributes, names ends) {
    target all{target::form::tuple, now().line, {}, {}, {}, {}};
    bool commas = false;
    for (;;) {
      if (!all.parts.empty()) need_op(",");
      if (tuple_ends(ends)) break;
      all.parts.push_back(simple_target(attributes));
      if (!at_op(",")) break;
      commas = true;
    }
    if (commas) return all;
    if (all.parts.empty()) refuse("expected a name, found " + described());
    return std::move(all.parts.front());
  }

  // Up to one of the ends, whose name is the next token.
  body lines(names ends) {
    nested guard(*this, blocks_, deepest_block, "blocks");
    body out;
    for (;;) {
      switch (now().kind) {
        case token_kind::end:
          if (ends.size() > 0) refuse("the template ends before " + std::string(*(ends.end() - 1)));
          return out;
        case token_kind::data: {
          statement s;
          s.what = statement::form::text;
          s.line = now().line;
          s.text = take().text;
          out.push_back(std::move(s));
          break;
        }
        case token_kind::variable_begin: {
          statement s;
          s.what = statement::form::print;
          s.line = take().line;
          s.value = tuple(true, false, {});
          check_safe(s.line, s.value->what == op::filter && s.value->text == "safe" ? 1 : 0);
          need(token_kind::variable_end, "'}}'");
          out.push_back(std::move(s));
          break;
        }
        default:
          need(token_kind::block_begin, "'{%'");
          if (at_name(ends)) return out;
          out.push_back(block());
          check_safe(out.back().line, 0);
          need(token_kind::block_end, "'%}'");
      }
    }
  }

  // The filter gives another kind of text, which escapes what is added to it: printed, it is text as any other.
  void check_safe(std::uint32_t line, std::uint32_t allowed) {
    if (std::exchange(safes_, 0) != allowed) refuse(line, "the filter safe is supported as the last of {{ }} only");
  }

  body inner(names ends) {
    check_safe(now().line, 0);
    skip_op(":");
    need(token_kind::block_end, "'%}'");
    return lines(ends);
  }

  statement block() {
    if (now().kind != token_kind::name) refuse("expected a statement, found " + described());
    statement s;
    s.line = now().line;
    auto name = now().text;
    if (name == "if") return branches(std::move(s));
    if (name == "for") return loop(std::move(s));
    if (name == "set") return set(std::move(s));
    if (name == "macro") return macro(std::move(s));
    if (name == "generation") {
      take();
      s.what = statement::form::scope;
      s.plan = std::make_unique<macro_plan>();
      // A function in Jinja, out of which no loop is left.
      auto outer = std::exchange(loops_, 0);
      s.plan->lines = std::make_shared<body>(inner({"endgeneration"}));
      loops_ = outer;
      take();
      return s;
    }
    if (name == "break" || name == "continue") {
      take();
      if (loops_ == 0) refuse(s.line, name + " outside a loop");
      s.what = name == "break" ? statement::form::leave : statement::form::again;
      return s;
    }
    refuse("the statement " + detail::printable(name) + " is not supported");
  }

  statement branches(statement s) {
    s.what = statement::form::branches;
    take();
    for (;;) {
      auto condition = tuple(false, false, {});
      auto then = inner({"elif", "else", "endif"});
      s.branches.emplace_back(std::move(condition), std::move(then));
      auto word = take().text;
      if (word == "elif") continue;
      if (word == "else") {
        s.branches.emplace_back(nullptr, inner({"endif"}));
        take();
      }
      return s;
    }
  }

  statement loop(statement s) {
    s.what = statement::form::loop;
    take();
    ++in_for_;
    s.targets.push_back(assigned(false, {"in"}));
    if (!skip_name("in")) refuse("expected 'in', found " + described());
    s.value = tuple(false, false, {"recursive"});
    if (skip_name("if")) s.condition = expression();
    if (at_name("recursive")) refuse("a recursive loop");
    ++loops_;
    s.lines = inner({"else", "endfor"});
    --loops_;
    if (take().text == "else") {
      s.otherwise = inner({"endfor"});
      take();
    }
    --in_for_;
    return s;
  }

  statement set(statement s) {
    take();
    s.targets.push_back(assigned(true, {}));
    if (skip_op("=")) {
      s.what = statement::form::set;
      s.value = tuple(true, false, {});
      return s;
    }
    s.what = statement::form::set_block;
    s.value = make(op::captured, s.line);
    while (at_op("|")) s.value = filter(std::move(s.value));
    s.lines = inner({"endset"});
    take();
    return s;
  }

  statement macro(statement s) {
    s.what = statement::form::macro;
    take();
    s.plan = std::make_unique<macro_plan>();
    auto& m = *s.plan;
    m.name = need_name();
    if (m.name == "loop" && in_for_ > 0) refuse(s.line, "a macro with the name loop");
    need_op("(");
    while (!at_op(")")) {
      if (!m.parameters.empty()) need_op(",");
      auto name = need_name();
      if (among(name, {"true", "false", "none", "True", "False", "None", "caller", "varargs", "kwargs"}))
        refuse("a parameter with the name " + name);
      if (name == "loop" && in_for_ > 0) refuse("a parameter with the name loop inside a loop");
      for (auto& [other, v] : m.parameters)
        if (other == name) refuse("two parameters with the name " + name);
      if (m.parameters.size() == most_named)
        refuse("a macro of more than " + std::to_string(most_named) + " parameters");
      node_ptr otherwise;
      if (skip_op("=")) {
        otherwise = expression();
      } else if (!m.parameters.empty() && m.parameters.back().second) {
        refuse("a parameter without a default after one with a default");
      }
      m.parameters.emplace_back(std::move(name), std::move(otherwise));
    }
    need_op(")");
    auto outer = std::exchange(loops_, 0);
    m.lines = std::make_shared<body>(inner({"endmacro"}));
    loops_ = outer;
    take();
    return s;
  }

  std::vector<token> tokens_;
  std::size_t at_ = 0;
  budget cost_;
  std::uint32_t expressions_ = 0, blocks_ = 0, safes_ = 0;
  std::uint32_t loops_ = 0;   // that break leaves
  std::uint32_t in_for_ = 0;  // where `loop` may not be assigned to
};

}  // namespace

program parse_template(std::string_view source) {
  try {
    return bind(parser(source).run());
  } catch (const render_error& e) {  // of values that are made while parsing
    throw syntax_error(1, e.what());
  }
}

}  // namespace cokv::chat

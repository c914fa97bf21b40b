#include "machine.hpp"

#include "loop.hpp"
#include "operators.hpp"
#include "print.hpp"

namespace cokv::chat {

std::string machine::run() {
  cost.step(program_.slots);
  activation root{nullptr, std::vector<value>(program_.slots)};
  std::string out;
  enter(program_.frame, root);
  run(program_.lines, root, out);
  return out;
}

void machine::write(std::string_view s, std::string& out) {
  cost.make(s.size());
  out += s;
}

machine::flow machine::run(const body& lines, activation& f, std::string& out) {
  deeper guard(cost);
  for (auto& s : lines) {
    cost.step();
    line_ = s.line;
    if (auto then = run(s, f, out); then != flow::on) return then;
  }
  return flow::on;
}

machine::flow machine::run(const statement& s, activation& f, std::string& out) {
  switch (s.what) {
    case statement::form::text:
      write(s.text, out);
      return flow::on;
    case statement::form::print: {
      auto v = evaluate(*s.value, f);
      v.is(kind::text) ? write(v.str(), out) : write(to_text(v, cost), out);
      return flow::on;
    }
    case statement::form::branches:
      for (auto& [condition, lines] : s.branches)
        if (!condition || truth(evaluate(*condition, f), cost)) return run(lines, f, out);
      return flow::on;
    case statement::form::loop:
      return run_loop(s, f, out);
    case statement::form::set:
      check_namespaces(s.targets.front(), f);
      assign(s.targets.front(), f, evaluate(*s.value, f));
      return flow::on;
    case statement::form::set_block: {
      enter(s.frame, f);
      std::string inside;
      auto then = run(s.lines, f, inside);
      if (then == flow::on) {
        auto around = std::exchange(captured_, &inside);
        auto v = evaluate(*s.value, f);
        captured_ = around;
        assign(s.targets.front(), f, v);
      }
      leave(s.frame, f);
      return then;
    }
    case statement::form::macro:
      cost.step(8);
      macros_.push_back({s.plan.get(), &f});
      at(s.variable, f) = value(static_cast<const macro*>(&macros_.back()));
      return flow::on;
    case statement::form::leave:
      return flow::leave;
    case statement::form::again:
      return flow::again;
    case statement::form::scope:
      write(run_function(*s.plan, &f, {}), out);
      return flow::on;
  }
  return flow::on;
}

// Only those elements that the loop's condition holds for; each is looked at when its turn comes.
stream* machine::filtered(const statement& s, activation& f, const value& over) {
  cost.step(s.condition_slots);
  auto own = std::make_shared<activation>(activation{&f, std::vector<value>(s.condition_slots)});
  auto* all = iterate(over, cost);
  auto next = [this, &s, own, all, entered = false]() mutable -> std::optional<value> {
    if (!std::exchange(entered, true)) enter(s.condition_frame, *own);
    while (auto v = all->next(cost)) {
      cost.step();
      assign(s.condition_targets.front(), *own, *v);
      if (truth(evaluate(*s.condition, *own), cost)) return assigned(s.condition_targets.front(), *own);
    }
    return std::nullopt;
  };
  return make_stream(std::move(next), all->depth, cost);
}

machine::flow machine::run_loop(const statement& s, activation& f, std::string& out) {
  auto over = evaluate(*s.value, f);
  auto sized = s.condition || over.is(kind::stream) ? std::nullopt : length(over, cost);
  auto* all = s.condition ? filtered(s, f, over) : iterate(over, cost);
  auto* loop = cost.keep(loop_state(all, sized, cost));
  // An element whose turn was not gone through to its end counts as none, for the else.
  bool none_done = true;
  while (auto v = loop->next()) {
    assign(s.targets.front(), f, *v);
    if (s.has_loop) f.slots[s.loop_slot] = value(loop);
    enter(s.frame, f);
    auto then = run(s.lines, f, out);
    if (then == flow::leave) break;
    if (then == flow::on) none_done = false;
  }
  leave(s.frame, f);
  if (!none_done || s.otherwise.empty()) return flow::on;
  enter(s.otherwise_frame, f);
  auto then = run(s.otherwise, f, out);
  leave(s.otherwise_frame, f);
  return then;
}

std::string machine::run_function(const macro_plan& m, activation* outer, const arguments& with) {
  deeper guard(cost);
  const auto count = m.parameters.size();
  if (with.listed.size() > count)
    fail("macro '" + m.name + "' takes not more than " + std::to_string(count) + " argument(s)");
  cost.step(4 + m.slots);
  activation plain{outer, std::vector<value>(m.slots)};
  activation& f = m.kept ? kept_.emplace_back(std::move(plain)) : plain;
  for (std::size_t i = 0; i < with.listed.size(); ++i) f.slots[m.parameter_slots[i]] = with.listed[i];
  for (auto& [key, v] : with.named) {
    std::size_t i = with.listed.size();
    while (i < count && m.parameters[i].first != key) ++i;
    cost.step(i);
    if (i == count) fail("macro '" + m.name + "' takes no keyword argument '" + key + "'");
    f.slots[m.parameter_slots[i]] = v;
  }
  enter(m.frame, f);
  for (std::size_t i = 0; i < count; ++i) {
    auto& [key, otherwise] = m.parameters[i];
    if (!f.slots[m.parameter_slots[i]].is(kind::missing)) continue;
    auto v = otherwise ? evaluate(*otherwise, f) : make_undefined("parameter '" + key + "' was not provided", cost);
    f.slots[m.parameter_slots[i]] = std::move(v);
  }
  std::string out;
  run(*m.lines, f, out);
  return out;
}

value machine::make_space(std::vector<std::pair<std::string, value>> items) {
  cost.step(8 + items.size());
  auto& made = spaces_.emplace_back();
  for (auto& [k, v] : items) made.set(k, std::move(v), cost);
  return value(&made);
}

value machine::call(const value& f, const arguments& with) {
  cost.step();
  switch (f.type()) {
    case kind::undefined:
      fail(*f.as<undefined>().why);
    case kind::macro: {
      auto* m = f.as<const macro*>();
      return make_text(run_function(*m->plan, m->outer, with), cost);
    }
    case kind::method:
      return call_method(*this, *f.as<std::shared_ptr<const method>>(), with);
    case kind::function:
      return call_function(*this, f.as<function>(), with);
    default:
      fail(std::string("'") + type_name(f) + "' object is not callable");
  }
}

// ---- variables

value& machine::at(slot s, activation& f) {
  auto* in = &f;
  for (auto up = s.up; up > 0; --up) in = in->outer;
  return in->slots[s.at];
}

value machine::given(const std::string& name) {
  cost.step(given_.size() / 16);
  for (auto& [key, v] : given_)
    if (key == name) return v;
  if (name == "range") return value(function::range);
  if (name == "dict") return value(function::dict);
  if (name == "namespace") return value(function::make_namespace);
  if (name == "raise_exception") return value(function::raise_exception);
  if (name == "strftime_now") return value(function::strftime_now);
  return {};
}

void machine::enter(const frame_plan& p, activation& f) {
  using from = frame_plan::load::from;
  cost.step(p.loads.size());
  for (auto& l : p.loads) {
    if (l.how == from::parameter) continue;
    f.slots[l.to] = l.how == from::context ? given(l.name) : l.how == from::outer ? at(l.outer, f) : value();
  }
}

void machine::leave(const frame_plan& p, activation& f) {
  cost.step(p.loads.size());
  for (auto& l : p.loads) f.slots[l.to] = value();
}

void machine::check_namespaces(const target& t, activation& f) {
  for (auto& p : t.parts) check_namespaces(p, f);
  if (t.what == target::form::attribute && !at(t.variable, f).is(kind::space))
    fail("cannot assign attribute on non-namespace object");
}

// What was assigned, in the form of the target: the elements of a filtered loop with several targets are tuples.
value machine::assigned(const target& t, activation& f) {
  if (t.what == target::form::name) return at(t.variable, f);
  std::vector<value> all;
  for (auto& p : t.parts) all.push_back(assigned(p, f));
  return make_list(std::move(all), cost, form::tuple);
}

void machine::assign(const target& t, activation& f, const value& v) {
  switch (t.what) {
    case target::form::name:
      at(t.variable, f) = v;
      return;
    case target::form::attribute: {
      auto& space_at = at(t.variable, f);
      if (!space_at.is(kind::space)) fail("cannot assign attribute on non-namespace object");
      space_at.as<space*>()->set(t.attribute, v, cost);
      return;
    }
    case target::form::tuple:
      break;
  }
  if (!iterable(v)) fail(std::string("cannot unpack non-iterable ") + type_name(v) + " object");
  auto all = elements(v, cost);
  if (all.size() != t.parts.size())
    fail("expected " + std::to_string(t.parts.size()) + " values to unpack, found " + std::to_string(all.size()));
  for (std::size_t i = 0; i < all.size(); ++i) assign(t.parts[i], f, all[i]);
}

// ---- expressions

value machine::evaluate_part(const node& n, std::size_t i, activation& f) {
  return n.parts[i] ? evaluate(*n.parts[i], f) : value();
}

value machine::evaluate(const node& n, activation& f) {
  deeper guard(cost);
  cost.step();
  switch (n.what) {
    case op::constant:
      return n.constant;
    case op::name:
      return name(n, f);
    case op::tuple:
    case op::list:
    case op::dict:
      return gathered(n, f);
    case op::attribute: {
      auto of = evaluate(*n.parts[0], f);
      line_ = n.line;
      return attribute_of(of, n.text, cost);
    }
    case op::item: {
      auto of = evaluate(*n.parts[0], f);
      auto key = evaluate(*n.parts[1], f);
      line_ = n.line;
      return item_of(of, key, cost);
    }
    case op::slice: {
      auto of = evaluate(*n.parts[0], f);
      auto start = evaluate_part(n, 1, f), stop = evaluate_part(n, 2, f), step = evaluate_part(n, 3, f);
      line_ = n.line;
      return slice_of(of, start, stop, step, cost);
    }
    case op::call:
    case op::filter:
    case op::test:
      return called(n, f);
    case op::conditional:
      if (truth(evaluate(*n.parts[0], f), cost)) return evaluate(*n.parts[1], f);
      if (n.parts[2]) return evaluate(*n.parts[2], f);
      return make_undefined("an inline if was false and has no else", cost);
    case op::either:
    case op::both:
    case op::negation:
      return logic(n, f);
    case op::minus:
      return negative(evaluate(*n.parts[0], f));
    case op::plus:
      return positive(evaluate(*n.parts[0], f));
    case op::compare:
      return comparison(n, f);
    case op::concat:
      return concat(n, f);
    case op::captured:
      return make_text(*captured_, cost);
    default: {
      auto a = evaluate(*n.parts[0], f);
      auto b = evaluate(*n.parts[1], f);
      line_ = n.line;
      return arithmetic(n.what, a, b, cost);
    }
  }
}

value machine::name(const node& n, activation& f) {
  auto& v = at(n.variable, f);
  return v.is(kind::missing) ? make_undefined("'" + n.text + "' is undefined", cost) : v;
}

value machine::gathered(const node& n, activation& f) {
  if (n.what != op::dict) {
    std::vector<value> all;
    for (auto& p : n.parts) all.push_back(evaluate(*p, f));
    return make_list(std::move(all), cost, n.what == op::list ? form::list : form::tuple);
  }
  std::vector<std::pair<value, value>> items;
  for (std::size_t i = 0; i < n.parts.size(); i += 2) {
    auto key = evaluate(*n.parts[i], f);
    put(items, std::move(key), evaluate(*n.parts[i + 1], f), cost);
  }
  return make_mapping(std::move(items), cost);
}

value machine::logic(const node& n, activation& f) {
  auto left = evaluate(*n.parts[0], f);
  if (n.what == op::negation) return value(!truth(left, cost));
  if (truth(left, cost) == (n.what == op::either)) return left;
  return evaluate(*n.parts[1], f);
}

value machine::comparison(const node& n, activation& f) {
  auto left = evaluate(*n.parts[0], f);
  for (std::size_t i = 0; i < n.signs.size(); ++i) {
    auto right = evaluate(*n.parts[i + 1], f);
    line_ = n.line;
    auto& sign = n.signs[i];
    bool holds;
    if (sign == "==" || sign == "!=") {
      holds = equal(left, right, cost) == (sign == "==");
    } else if (sign == "in" || sign == "not in") {
      holds = contains(right, left, cost) == (sign == "in");
    } else {
      auto o = order(left, right, cost, sign.c_str());
      holds = (sign[0] == '<' ? o == -1 : o == 1) || (sign.size() == 2 && o == 0);
    }
    if (!holds || i + 1 == n.signs.size()) return value(holds);
    left = std::move(right);
  }
  return left;
}

value machine::concat(const node& n, activation& f) {
  std::vector<value> all;
  for (auto& p : n.parts) all.push_back(evaluate(*p, f));
  std::string out;
  for (auto& v : all) v.is(kind::text) ? write(v.str(), out) : write(to_text(v, cost), out);
  return make_text(std::move(out), cost);
}

arguments machine::arguments_of(const node& n, std::size_t from, activation& f) {
  arguments out;
  for (auto i = from; i < n.parts.size(); ++i) out.listed.push_back(evaluate(*n.parts[i], f));
  for (auto& [key, v] : n.keywords) out.named.emplace_back(key, evaluate(*v, f));
  return out;
}

value machine::called(const node& n, activation& f) {
  auto of = evaluate(*n.parts[0], f);
  auto with = arguments_of(n, 1, f);
  line_ = n.line;
  if (n.what == op::filter) return apply_filter(*this, n.text, of, with);
  if (n.what == op::test) return value(apply_test(*this, n.text, of, with));
  return call(of, with);
}

}  // namespace cokv::chat

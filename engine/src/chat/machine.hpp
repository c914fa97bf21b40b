// Renders a program: statements run, expressions evaluated, macros called.
#pragma once

#include <deque>

#include "arguments.hpp"
#include "ast.hpp"

namespace cokv::chat {

// The variables of one run of a function, as Python's locals.
struct activation {
  activation* outer;
  std::vector<value> slots;
};

using variables = std::vector<std::pair<std::string, value>>;
using time_text = std::function<std::string(std::string_view format)>;

class machine {
 public:
  // What is given outlives it.
  machine(const program& p, const variables& given, const time_text& now) : program_(p), given_(given), now_(now) {}

  // Throws render_error.
  std::string run();

  value call(const value& f, const arguments& with);
  value make_space(std::vector<std::pair<std::string, value>> items);
  std::string strftime(std::string_view format) const { return now_(format); }
  std::uint32_t line() const noexcept { return line_; }

  budget cost;

 private:
  enum class flow : std::uint8_t { on, leave, again };

  flow run(const body& lines, activation& f, std::string& out);
  flow run(const statement& s, activation& f, std::string& out);
  flow run_loop(const statement& s, activation& f, std::string& out);
  void write(std::string_view s, std::string& out);
  std::string run_function(const macro_plan& m, activation* outer, const arguments& with);
  stream* filtered(const statement& s, activation& f, const value& over);

  void enter(const frame_plan& p, activation& f);
  void leave(const frame_plan& p, activation& f);
  void assign(const target& t, activation& f, const value& v);
  value assigned(const target& t, activation& f);
  void check_namespaces(const target& t, activation& f);
  static value& at(slot s, activation& f);
  value given(const std::string& name);

  value evaluate(const node& n, activation& f);
  value evaluate_part(const node& n, std::size_t i, activation& f);
  value name(const node& n, activation& f);
  value gathered(const node& n, activation& f);
  value logic(const node& n, activation& f);
  value comparison(const node& n, activation& f);
  value concat(const node& n, activation& f);
  value called(const node& n, activation& f);
  arguments arguments_of(const node& n, std::size_t from, activation& f);

  const program& program_;
  const variables& given_;
  const time_text& now_;
  std::uint32_t line_ = 0;
  std::string* captured_ = nullptr;
  std::deque<space> spaces_;
  std::deque<macro> macros_;
  std::deque<activation> kept_;
};

value apply_filter(machine& m, std::string_view name, const value& v, const arguments& with);
bool apply_test(machine& m, std::string_view name, const value& v, const arguments& with);
value call_method(machine& m, const method& what, const arguments& with);
value call_function(machine& m, function what, const arguments& with);

}  // namespace cokv::chat

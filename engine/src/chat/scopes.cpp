#include "scopes.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "lexer.hpp"

namespace cokv::chat {

namespace {

// Every branch of an if has the names before it once more: what a template of many names and many ifs may take.
class copies {
 public:
  void count(std::uint32_t line, std::size_t n) {
    constexpr std::size_t most = 1'000'000;
    if ((done_ += n) > most) throw syntax_error(line, "too many names in too many branches to be told apart");
  }

 private:
  std::size_t done_ = 0;
};

// The names of one frame, which the template holds. A frame's level and a name together are a variable.
class symbols {
 public:
  enum class from : std::uint8_t { parameter, context, outer, nothing };
  struct load {
    from how;
    int outer_level = 0;
  };

  explicit symbols(copies& c) : copies_(&c) {}
  explicit symbols(const symbols* parent) : copies_(parent->copies_), parent_(parent), level_(parent->level_ + 1) {}

  int level() const noexcept { return level_; }
  const std::map<std::string_view, load>& loads() const noexcept { return loads_; }

  // The level of the frame whose variable the name is; below 0 when no frame mentions it.
  int find(std::string_view name) const {
    if (refs_.contains(name)) return level_;
    return parent_ ? parent_->find(name) : -1;
  }

  void declare(std::string_view name) {
    stores_.insert(name);
    define(name, {from::parameter});
  }
  void read(std::string_view name) {
    if (find(name) < 0) define(name, {from::context});
  }
  void store(std::string_view name) {
    stores_.insert(name);
    if (refs_.contains(name)) return;
    auto level = parent_ ? parent_->find(name) : -1;
    define(name, level >= 0 ? load{from::outer, level} : load{from::nothing});
  }
  void merge(const std::vector<symbols>& branches) {
    std::set<std::string_view> fresh;
    for (auto& b : branches)
      for (auto& name : b.stores_)
        if (!stores_.contains(name)) fresh.insert(name);
    for (auto& b : branches) {
      refs_.insert(b.refs_.begin(), b.refs_.end());
      for (auto& [name, l] : b.loads_) loads_[name] = l;
      stores_.insert(b.stores_.begin(), b.stores_.end());
    }
    for (auto& name : fresh) {
      auto level = parent_ ? parent_->find(name) : -1;
      loads_[name] = level >= 0 ? load{from::outer, level} : load{from::context};
    }
  }

  // ---- what statements do to the frame they are in

  void visit(const node* n) {
    if (!n) return;
    if (n->what == op::name) read(n->text);
    for (auto& p : n->parts) visit(p.get());
    for (auto& [name, v] : n->keywords) visit(v.get());
  }
  void visit(const target& t, bool parameters) {
    for (auto& p : t.parts) visit(p, parameters);
    if (t.what == target::form::attribute) read(t.name);
    if (t.what != target::form::name) return;
    parameters ? declare(t.name) : store(t.name);
  }
  void visit(const body& lines) {
    for (auto& s : lines) visit(s);
  }
  void visit(const statement& s) {
    switch (s.what) {
      case statement::form::print:
        return visit(s.value.get());
      case statement::form::set:
        visit(s.value.get());
        return visit(s.targets.front(), false);
      case statement::form::set_block:
        return visit(s.targets.front(), false);
      case statement::form::loop:
        return visit(s.value.get());
      case statement::form::macro:
        return store(s.plan->name);
      case statement::form::branches:
        return visit_branches(s);
      default:
        return;
    }
  }

 private:
  void define(std::string_view name, load l) {
    refs_.insert(name);
    loads_[name] = l;
  }

  std::vector<symbols> branched(std::uint32_t line) const {
    copies_->count(line, 3 * (refs_.size() + stores_.size() + loads_.size()));
    return std::vector<symbols>(3, *this);
  }

  // The condition, and the branches as three alternatives: this one, those with an elif, and the else.
  void visit_branches(const statement& s) {
    visit(s.branches.front().first.get());
    auto all = branched(s.line);
    all[0].visit(s.branches.front().second);
    for (std::size_t i = 1; i < s.branches.size(); ++i) {
      auto& [condition, lines] = s.branches[i];
      if (!condition) {
        all[2].visit(lines);
        continue;
      }
      all[1].visit(condition.get());  // an if of its own, without an else
      auto inner = all[1].branched(condition->line);
      inner[0].visit(lines);
      all[1].merge(inner);
    }
    merge(all);
  }

  copies* copies_;
  const symbols* parent_ = nullptr;
  int level_ = 0;
  std::set<std::string_view> refs_, stores_;
  std::map<std::string_view, load> loads_;
};

// Is the name read in there before it is assigned to?
class reader_of {
 public:
  explicit reader_of(std::string name) : name_(std::move(name)) {}
  bool found = false;

  void look(const node* n) {
    if (!n || done_) return;
    if (n->what == op::name && n->text == name_) found = done_ = true;
    for (auto& p : n->parts) look(p.get());
    for (auto& [k, v] : n->keywords) look(v.get());
  }
  void look(const body& lines) {
    for (auto& s : lines) {
      look(s.value.get());
      look(s.condition.get());
      for (auto& [c, b] : s.branches) {
        look(c.get());
        look(b);
      }
      look(s.lines);
      look(s.otherwise);
      if (!s.plan) continue;
      for (auto& [p, d] : s.plan->parameters) look(d.get());
      look(*s.plan->lines);
    }
  }

 private:
  std::string name_;
  bool done_ = false;
};

class binder {
 public:
  program run(body lines) {
    function root(nullptr, 0);
    at_ = &root;
    symbols top(copies_);
    top.visit(lines);
    program out;
    out.frame = plan(top);
    bind_lines(lines, top);
    out.lines = std::move(lines);
    out.slots = root.count();
    return out;
  }

 private:
  // What has variables of its own at run time, shared by the frames in it.
  struct function {
    function(function* o, int base) : outer(o), base_level(base) {}
    function* outer;
    int base_level;
    std::map<std::pair<int, std::string>, std::uint32_t> places;
    bool kept = false;  // its variables may be looked at after it has returned
    std::uint32_t count() const { return static_cast<std::uint32_t>(places.size()); }
    std::uint32_t place(int level, const std::string& name) {
      return places.try_emplace({level, name}, count()).first->second;
    }
  };

  slot place(int level, const std::string& name) {
    slot out;
    auto* f = at_;
    for (; level < f->base_level; f = f->outer) ++out.up;
    out.at = f->place(level, name);
    return out;
  }

  frame_plan plan(const symbols& s) {
    frame_plan out;
    for (auto& [name, l] : s.loads()) {
      const std::string own(name);
      frame_plan::load load{static_cast<frame_plan::load::from>(l.how), place(s.level(), own).at, {}, own};
      if (l.how == symbols::from::outer) load.outer = place(l.outer_level, own);
      out.loads.push_back(std::move(load));
    }
    return out;
  }

  [[noreturn]] static void refuse(std::uint32_t line, const std::string& what) { throw syntax_error(line, what); }

  void bind_node(node* n, const symbols& s) {
    if (!n) return;
    if (n->what == op::name) {
      for (auto* unknown : {"cycler", "joiner", "lipsum", "self"})
        if (n->text == unknown) refuse(n->line, "the name " + n->text + " is not supported");
      for (auto* special : {"caller", "varargs", "kwargs"})
        if (n->text == special && macros_ > 0) refuse(n->line, "the name " + n->text + " in a macro is not supported");
      auto level = s.find(n->text);
      if (level < 0) refuse(n->line, "the name " + n->text + " is not supported here");
      n->variable = place(level, n->text);
    }
    for (auto& p : n->parts) bind_node(p.get(), s);
    for (auto& [name, v] : n->keywords) bind_node(v.get(), s);
  }

  void bind_target(target& t, const symbols& s) {
    for (auto& p : t.parts) bind_target(p, s);
    if (t.what != target::form::tuple) t.variable = place(s.find(t.name), t.name);
  }

  void bind_lines(body& lines, symbols& s) {
    for (auto& l : lines) bind_statement(l, s);
  }

  void bind_statement(statement& l, symbols& s) {
    switch (l.what) {
      case statement::form::print:
        return bind_node(l.value.get(), s);
      case statement::form::set:
        bind_node(l.value.get(), s);
        return bind_target(l.targets.front(), s);
      case statement::form::set_block: {
        symbols inner(&s);
        inner.visit(l.lines);
        l.frame = plan(inner);
        bind_lines(l.lines, inner);
        bind_node(l.value.get(), inner);
        return bind_target(l.targets.front(), s);
      }
      case statement::form::branches:
        for (auto& [condition, lines] : l.branches) {
          bind_node(condition.get(), s);
          bind_lines(lines, s);
        }
        return;
      case statement::form::loop:
        return bind_loop(l, s);
      case statement::form::macro:
        at_->kept = true;
        bind_macro(*l.plan, s);
        l.variable = place(s.find(l.plan->name), l.plan->name);
        return;
      case statement::form::scope:
        return bind_macro(*l.plan, s);
      default:
        return;
    }
  }

  void bind_loop(statement& l, symbols& s) {
    symbols inner(&s), test(&s), otherwise(&s);
    reader_of loop("loop");
    loop.look(l.lines);
    l.has_loop = loop.found;
    if (l.has_loop) inner.declare("loop");
    inner.visit(l.targets.front(), true);
    inner.visit(l.lines);
    if (!l.otherwise.empty()) otherwise.visit(l.otherwise);

    bind_node(l.value.get(), s);
    if (l.condition) {
      at_->kept = true;
      test.visit(l.targets.front(), true);
      test.visit(l.condition.get());
      function own(at_, s.level() + 1);
      at_ = &own;
      l.condition_frame = plan(test);
      l.condition_targets.push_back(l.targets.front());
      bind_target(l.condition_targets.front(), test);
      bind_node(l.condition.get(), test);
      at_ = own.outer;
      l.condition_slots = own.count();
    }
    l.frame = plan(inner);
    if (l.has_loop) l.loop_slot = place(inner.level(), "loop").at;
    bind_target(l.targets.front(), inner);
    bind_lines(l.lines, inner);
    l.otherwise_frame = plan(otherwise);
    bind_lines(l.otherwise, otherwise);
  }

  void bind_macro(macro_plan& m, symbols& s) {
    symbols inner(&s);
    for (auto& [name, d] : m.parameters) inner.declare(name);
    for (auto& [name, d] : m.parameters) inner.visit(d.get());
    auto& lines = m.lines;
    inner.visit(*lines);
    function own(at_, inner.level());
    at_ = &own;
    ++macros_;
    m.frame = plan(inner);
    for (auto& [name, d] : m.parameters) {
      m.parameter_slots.push_back(place(inner.level(), name).at);
      bind_node(d.get(), inner);
    }
    bind_lines(*lines, inner);
    --macros_;
    at_ = own.outer;
    m.slots = own.count();
    m.kept = own.kept;
    if (own.kept) at_->kept = true;
  }

  copies copies_;
  function* at_ = nullptr;
  int macros_ = 0;
};

}  // namespace

program bind(body lines) { return binder().run(std::move(lines)); }

}  // namespace cokv::chat

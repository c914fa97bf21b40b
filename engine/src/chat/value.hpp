// What a template computes with: Python's values, as far as templates see them. Nothing is ever changed in place but a
// namespace, so values share what they hold.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cokv::chat {

// A template that can't go on with the values it has. `raised`: by its own raise_exception.
struct render_error : std::runtime_error {
  explicit render_error(const std::string& what, bool by_template = false)
      : std::runtime_error(what), raised(by_template) {}
  bool raised;
};
[[noreturn]] void fail(const std::string& what);

// What rendering may cost, so that neither a template nor a client's text can make it long or large. Each step is a
// node evaluated, an element looked at or 64 bytes of text gone through.
class budget {
 public:
  static constexpr std::uint64_t most_steps = 2'000'000, most_bytes = 96 << 20;

  void step(std::uint64_t n = 1);
  void scan(std::uint64_t bytes) { step(1 + bytes / 64); }
  void make(std::uint64_t bytes);  // of new text
  void enter();                    // one level deeper
  void leave() noexcept { --depth_; }
  std::uint64_t steps() const noexcept { return steps_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

  // A T that lives as long as the budget, whoever points to it: what is changed after it was made may come to hold
  // itself, or a chain of its kind that is too long to be destroyed one out of the other.
  template <class T>
  T* keep(T made) {
    auto own = std::make_shared<T>(std::move(made));
    kept_.push_back(own);
    return own.get();
  }

 private:
  std::uint64_t steps_ = 0, bytes_ = 0;
  std::uint32_t depth_ = 0;
  std::deque<std::shared_ptr<void>> kept_;
};

struct deeper {
  explicit deeper(budget& b) : of(b) { of.enter(); }
  ~deeper() { of.leave(); }
  deeper(const deeper&) = delete;
  budget& of;
};

class value;
using text = std::shared_ptr<const std::string>;
using values = std::vector<value>;

struct missing {};  // a variable before its first assignment; never an expression's value
struct undefined {  // Jinja's Undefined
  text why;         // the error when it is used
};
struct none {};
struct number_range {
  static constexpr std::int64_t furthest = std::int64_t{1} << 60;  // of all three from 0, so that nothing overflows
  std::int64_t start, stop, step;
  std::int64_t size() const noexcept;
  std::int64_t at(std::int64_t i) const noexcept { return start + i * step; }
};

enum class form : std::uint8_t { list, tuple, keys, values, items };  // the last three: views of a dict
struct sequence;
struct mapping;
struct stream;      // read once: what Python's generators are; a budget keeps it
struct space;       // a namespace
struct loop_state;  // the variable `loop`; a budget keeps it
struct macro;
struct method;  // of a value
enum class function : std::uint8_t { range, dict, make_namespace, raise_exception, strftime_now };

enum class kind : std::uint8_t {
  missing,
  undefined,
  none,
  boolean,
  integer,
  real,
  text,
  range,
  sequence,
  mapping,
  stream,
  space,
  loop,
  macro,
  method,
  function
};

class value {
 public:
  using rep = std::variant<missing, undefined, none, bool, std::int64_t, double, text, number_range,
                           std::shared_ptr<const sequence>, std::shared_ptr<const mapping>, stream*, space*,
                           loop_state*, const macro*, std::shared_ptr<const method>, function>;

  value() = default;
  template <class T>
    requires(!std::is_same_v<std::remove_cvref_t<T>, value>)
  explicit value(T v) : rep_(std::in_place_type<T>, std::move(v)) {}

  kind type() const noexcept { return static_cast<kind>(rep_.index()); }
  bool is(kind k) const noexcept { return type() == k; }
  template <class T>
  const T& as() const {
    return std::get<T>(rep_);
  }
  std::string_view str() const { return *std::get<text>(rep_); }
  const sequence& seq() const { return *std::get<std::shared_ptr<const sequence>>(rep_); }
  const mapping& map() const { return *std::get<std::shared_ptr<const mapping>>(rep_); }
  bool is_form(form f) const noexcept;
  bool is_view() const noexcept;
  bool is_number() const noexcept { return is(kind::boolean) || is(kind::integer) || is(kind::real); }
  bool is_whole() const noexcept { return is(kind::boolean) || is(kind::integer); }
  std::int64_t whole() const { return is(kind::boolean) ? as<bool>() : as<std::int64_t>(); }
  double real() const { return is(kind::real) ? as<double>() : static_cast<double>(whole()); }

 private:
  rep rep_;
};

// Values nest only so deep: what is made of them is printed, compared and destroyed by recursion.
struct sequence {
  form shape;
  std::vector<value> items;
  std::uint32_t depth = 0;
};
struct mapping {
  std::vector<std::pair<value, value>> items;  // in the order of insertion
  std::uint32_t depth = 0;
  const value* find(const value& key, budget& b) const;
};
struct stream {
  std::function<std::optional<value>()> give;  // nothing: the end, and so for ever
  std::uint32_t depth = 0;
  bool read = false;  // at this moment
  std::optional<value> next(budget& b);
};
struct space {
  std::vector<std::pair<std::string, value>> items;
  const value* find(std::string_view name, budget& b) const;
  void set(std::string_view name, value v, budget& b);
};
struct method {
  value self;
  std::string name;
  std::uint32_t depth = 0;
};

value make_text(std::string s, budget& b);
value make_list(std::vector<value> items, budget& b, form f = form::list);
value make_mapping(std::vector<std::pair<value, value>> items, budget& b);  // keys differ already
stream* make_stream(std::function<std::optional<value>()> give, std::uint32_t depth_of_parts, budget& b);
value make_method(value self, std::string_view name);
value make_undefined(std::string why, budget& b);
std::uint32_t depth_of(const value& v) noexcept;

const char* type_name(const value& v);  // Python's
bool truth(const value& v, budget& b);
bool hashable(const value& v, budget& b);
bool same(std::string_view a, std::string_view b, budget& cost);
// Of two values: what == gives. Fails for what can't be compared here.
bool equal(const value& a, const value& b, budget& cost);
int order(const value& a, const value& b, budget& cost, const char* sign);  // -1, 0, 1; 2: neither (NaN)
bool contains(const value& in, const value& what, budget& b);

// Inserts or replaces.
void put(std::vector<std::pair<value, value>>& items, value key, value v, budget& b);

// All elements, as iteration gives them; reads a stream to its end.
std::vector<value> elements(const value& v, budget& b);
// A stream over the elements; of a stream itself.
stream* iterate(const value& v, budget& b);
bool iterable(const value& v) noexcept;
std::optional<std::int64_t> length(const value& v, budget& b);  // nothing where Python's len() fails

}  // namespace cokv::chat

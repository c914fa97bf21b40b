// A template after parsing: statements and expressions, and for each name where its variable is at run time.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "value.hpp"

namespace cokv::chat {

enum class op : std::uint8_t {
  constant,
  name,
  tuple,
  list,
  dict,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  conditional,
  either,
  both,
  negation,
  minus,
  plus,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concat,
  compare,
  captured  // what a block {% set %} has gathered, where its filters begin
};

// A variable: `up` functions out, there at `at`.
struct slot {
  std::uint32_t up = 0, at = 0;
};

struct node;
using node_ptr = std::unique_ptr<node>;

struct node {
  op what;
  std::uint32_t line;
  std::uint32_t depth = 1;
  std::string text;  // name, attribute, filter, test, or a comparison's signs
  value constant;
  std::vector<node_ptr> parts;                             // a missing part of a slice or a conditional is null
  std::vector<std::pair<std::string, node_ptr>> keywords;  // of a call, filter or test
  std::vector<std::string> signs;                          // of a comparison: one before each part but the first
  slot variable;
};

// What is assigned to: a name, a namespace's attribute, or a tuple of targets.
struct target {
  enum class form : std::uint8_t { name, attribute, tuple } what;
  std::uint32_t line;
  std::string name, attribute;
  std::vector<target> parts;
  slot variable;
};

// What happens to variables when a frame is entered; when it is left they are missing again.
struct frame_plan {
  struct load {
    enum class from : std::uint8_t { parameter, context, outer, nothing } how;
    std::uint32_t to;  // in the function at hand
    slot outer;        // from::outer
    std::string name;  // from::context
  };
  std::vector<load> loads;
};

struct statement;
using body = std::vector<statement>;

struct macro_plan {
  std::string name;
  std::vector<std::pair<std::string, node_ptr>> parameters;  // with defaults, or null
  std::vector<std::uint32_t> parameter_slots;
  std::shared_ptr<body> lines;
  frame_plan frame;
  std::uint32_t slots = 0;
  bool kept = false;  // its variables may be looked at after it has returned
};

struct statement {
  enum class form : std::uint8_t { text, print, branches, loop, set, set_block, macro, leave, again, scope } what;
  std::uint32_t line = 0;
  std::string text;                                 // text
  node_ptr value;                                   // print, set; a loop's iterable; set_block's filters
  std::vector<std::pair<node_ptr, body>> branches;  // an else has no condition
  std::vector<target> targets;                      // one
  node_ptr condition;                               // a loop's `if`
  body lines, otherwise;
  frame_plan frame, otherwise_frame, condition_frame;  // the condition is a function of its own
  std::vector<target> condition_targets;
  std::uint32_t condition_slots = 0;
  std::uint32_t loop_slot = 0;
  bool has_loop = false;             // the variable `loop` is looked at
  std::unique_ptr<macro_plan> plan;  // macro, scope
  slot variable;                     // macro: where it is kept
};

struct program {
  body lines;
  frame_plan frame;
  std::uint32_t slots = 0;
};

// A macro with the variables that it was defined among.
struct activation;
struct macro {
  const macro_plan* plan;
  activation* outer;
};

}  // namespace cokv::chat

#include "cluster/worker_info.hpp"

#include <boost/json/array.hpp>

namespace cokv::cluster {
namespace json = boost::json;
namespace {

constexpr std::uint64_t most_counted = std::uint64_t{1} << 53;  // exact wherever it is read

parsed<step_cost> read_step(const json::value& v) {
  fields f(v, "step");
  const step_cost s{f.real("a"), f.real("b"), f.real("c")};
  if (s.a < 0 || s.b < 0 || s.c < 0) f.refuse("a", "is less than nothing, or b or c");
  if (auto wrong = f.end()) return *wrong;
  return s;
}

}  // namespace

std::string_view to_string(worker_role r) noexcept {
  switch (r) {
    case worker_role::prefill:
      return "prefill";
    case worker_role::decode:
      return "decode";
    case worker_role::both:
      break;
  }
  return "both";
}

std::optional<worker_role> parse_role(std::string_view text) noexcept {
  for (auto r : {worker_role::prefill, worker_role::decode, worker_role::both})
    if (text == to_string(r)) return r;
  return {};
}

json::object to_json(const worker_facts& w) {
  const auto role = to_string(w.role);
  json::object out{{"role", json::string(role.data(), role.size())},
                   {"self", to_json(w.self)},
                   {"epoch", w.epoch},
                   {"links", json_of(w.links)},
                   {"max_sequence", w.max_sequence},
                   {"blocks", w.blocks},
                   {"blocks_free", w.blocks_free},
                   {"running", w.running},
                   {"waiting", w.waiting},
                   {"prompt_tokens_left", w.prompt_tokens_left},
                   {"step", {{"a", w.step.a}, {"b", w.step.b}, {"c", w.step.c}}},
                   {"broken", w.broken},
                   {"copies_at", w.copies_at}};
  if (w.doing) out["doing"] = to_json(*w.doing);
  return out;
}

parsed<worker_facts> read_worker(const json::value& v) {
  fields f(v, "worker");
  worker_facts w;
  const auto role = parse_role(f.text("role", 16));
  if (!role) f.refuse("role", "is none");
  w.role = role.value_or(worker_role::both);
  w.self = f.take<offer>("self", read_offer);
  w.epoch = f.number("epoch", std::numeric_limits<std::uint64_t>::max());
  w.links = f.texts("links", most_links, most_url_bytes);
  w.max_sequence = static_cast<std::uint32_t>(f.number("max_sequence", most_tokens, 1));
  w.blocks = f.number("blocks", most_counted);
  w.blocks_free = f.number("blocks_free", w.blocks);
  w.running = f.number("running", most_counted);
  w.waiting = f.number("waiting", most_counted);
  w.prompt_tokens_left = f.number("prompt_tokens_left", most_counted);
  w.step = f.take<step_cost>("step", read_step);
  w.broken = f.flag("broken");
  w.copies_at = f.text("copies_at", 64);
  if (f.has("doing")) w.doing = f.take<worker_activity>("doing", read_activity);
  if (auto wrong = f.end()) return *wrong;
  return w;
}

}  // namespace cokv::cluster

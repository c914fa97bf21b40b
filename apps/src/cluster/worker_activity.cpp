#include "cluster/worker_activity.hpp"

#include <boost/json/array.hpp>

namespace cokv::cluster {
namespace json = boost::json;
namespace {

constexpr std::uint64_t most_summed = std::uint64_t{1} << 53;  // exact wherever it is read
constexpr std::size_t most_tiers = 8;

parsed<worker_activity::tier> read_tier(const json::value& v) {
  fields f(v, "tiers");
  worker_activity::tier t;
  t.name = f.id("name");
  t.blocks = f.number("blocks", most_summed);
  t.in_bytes = f.number("in_bytes", most_summed);
  t.out_bytes = f.number("out_bytes", most_summed);
  t.bad = f.flag("bad");
  if (auto wrong = f.end()) return *wrong;
  return t;
}

}  // namespace

json::object to_json(const worker_activity& a) {
  json::array tiers;
  for (const auto& t : a.tiers)
    tiers.push_back({{"name", json::string(t.name)},
                     {"blocks", t.blocks},
                     {"in_bytes", t.in_bytes},
                     {"out_bytes", t.out_bytes},
                     {"bad", t.bad}});
  return {{"at_us", a.at_us},
          {"computing_us", a.computing_us},
          {"steps", a.steps},
          {"prompt_tokens", a.prompt_tokens},
          {"cached_tokens", a.cached_tokens},
          {"generated_tokens", a.generated_tokens},
          {"sent_bytes", a.sent_bytes},
          {"kept_copies", a.kept_copies},
          {"kept_bytes", a.kept_bytes},
          {"tiers", std::move(tiers)}};
}

parsed<worker_activity> read_activity(const json::value& v) {
  fields f(v, "doing");
  worker_activity a;
  a.at_us = f.number("at_us", most_summed);
  a.computing_us = f.number("computing_us", most_summed);
  a.steps = f.number("steps", most_summed);
  a.prompt_tokens = f.number("prompt_tokens", most_summed);
  a.cached_tokens = f.number("cached_tokens", most_summed);
  a.generated_tokens = f.number("generated_tokens", most_summed);
  a.sent_bytes = f.number("sent_bytes", most_summed);
  a.kept_copies = f.number("kept_copies", most_summed);
  a.kept_bytes = f.number("kept_bytes", most_summed);
  f.list("tiers", most_tiers, [&](const json::value& one) -> std::optional<std::string> {
    auto t = read_tier(one);
    if (!t) return t.error().message;
    a.tiers.push_back(std::move(*t));
    return std::nullopt;
  });
  if (auto wrong = f.end()) return *wrong;
  return a;
}

}  // namespace cokv::cluster

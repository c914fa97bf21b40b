#include "view/engine_status.hpp"

#include <boost/json/array.hpp>

namespace cokv::view {
namespace json = boost::json;

json::object engine_status(const engine_now& e) {
  const auto& c = e.counters;
  return {{"role", json::string(e.role)},
          {"running", c.running},
          {"waiting", c.waiting},
          {"prompt_tokens_left", c.prompt_tokens_left},
          {"blocks", c.blocks},
          {"blocks_free", c.blocks_free},
          {"blocks_in_use", c.blocks_in_use},
          {"blocks_cached", e.cached},
          {"requests",
           {{"finished", c.finished}, {"cancelled", c.cancelled}, {"failed", c.failed}, {"refused", c.refused}}},
          {"doing", to_json(e.doing)},
          {"timeline", to_json(e.drawn)},
          {"events", json::array()}};
}

}  // namespace cokv::view

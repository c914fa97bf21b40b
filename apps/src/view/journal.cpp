#include "view/journal.hpp"

namespace cokv::view {
namespace json = boost::json;

void journal::add(entry e) {
  e.number = ++last_;
  const auto now = clock::of(ex_).wall_now().time_since_epoch();
  e.at_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  if (entries_.size() == most_) entries_.pop_front();
  entries_.push_back(std::move(e));
  for (auto* f : followers_) f->changed_.tell();
}

json::array to_json(const std::deque<journal::entry>& entries) {
  json::array out;
  for (const auto& e : entries) {
    json::object one{{"number", e.number}, {"at_ms", e.at_ms}, {"what", json::string(e.what)}, {"amount", e.amount}};
    const std::pair<const char*, const std::string*> texts[] = {
        {"who", &e.who}, {"to", &e.to}, {"sequence", &e.sequence}, {"why", &e.why}};
    for (const auto& [name, text] : texts)
      if (!text->empty()) one[name] = json::string(*text);
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace cokv::view

#include "cache/event_log.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <charconv>

namespace cokv::cache {

std::function<void(const store_change&)> event_log::of(std::string tier) {
  return [this, tier = std::move(tier)](const store_change& change) { add(tier, change); };
}

void event_log::add(const std::string& tier, const store_change& change) {
  std::lock_guard lock(mutex_);
  for (std::size_t first = 0; first < change.keys.size(); first += keys_at_most) {
    const auto count = std::min(keys_at_most, change.keys.size() - first);
    const auto from = change.keys.begin() + static_cast<std::ptrdiff_t>(first);
    store_change part{change.what, change.ns, {from, from + static_cast<std::ptrdiff_t>(count)}};
    events_.push_back(std::make_shared<const event>(event{++last_, std::move(part), tier}));
    held_ += count;
  }
  for (; held_ > limit_; events_.pop_front()) held_ -= events_.front()->what.keys.size();
  for (const auto& one : waiting_)
    asio::post(one->get_executor(), [weak = std::weak_ptr(one)] {
      if (auto there = weak.lock()) there->try_send(1);
    });
}

std::uint64_t event_log::newest() const {
  std::lock_guard lock(mutex_);
  return last_;
}

event_log::answer event_log::next(std::uint64_t wanted) const {
  std::lock_guard lock(mutex_);
  const auto oldest = last_ + 1 - events_.size();
  if (wanted > last_) return {wanted > last_ + 1, nullptr};
  if (wanted < oldest) return {true, nullptr};
  return {false, events_[wanted - oldest]};
}

std::size_t event_log::followers() const {
  std::lock_guard lock(mutex_);
  return waiting_.size();
}

event_log::follower::follower(event_log& log, asio::any_io_executor ex)
    : log_(log), more_(std::make_shared<channel<char>>(std::move(ex), 1)) {
  std::lock_guard lock(log_.mutex_);
  log_.waiting_.push_back(more_);
}

event_log::follower::~follower() {
  std::lock_guard lock(log_.mutex_);
  std::erase(log_.waiting_, more_);
}

std::string event_id(std::uint64_t epoch, std::uint64_t sequence) {
  char text[40];
  auto* end = std::to_chars(text, text + 20, epoch, 16).ptr;
  *end++ = '-';
  return {text, std::to_chars(end, text + sizeof text, sequence).ptr};
}

std::optional<std::uint64_t> parse_event_id(std::string_view text, std::uint64_t epoch) {
  const auto dash = text.find('-');
  if (dash == text.npos) return std::nullopt;
  std::uint64_t of = 0, sequence = 0;
  const auto* middle = text.data() + dash;
  const auto* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), middle, of, 16);
  const auto second = std::from_chars(middle + 1, end, sequence);
  if (first.ec != std::errc() || first.ptr != middle || second.ec != std::errc() || second.ptr != end)
    return std::nullopt;
  if (of != epoch || sequence == ~std::uint64_t{0}) return std::nullopt;
  return sequence + 1;
}

std::string event_text(const event_log::event& e, std::uint64_t epoch) {
  const bool stored = e.what.what == store_change::kind::stored;
  std::string out = "id: " + event_id(epoch, e.sequence) + (stored ? "\nevent: stored" : "\nevent: removed");
  out.append("\ndata: {\"tier\":\"").append(e.tier).append("\",\"namespace\":\"").append(e.what.ns.hex());
  out.append("\",\"keys\":[");
  for (const auto& key : e.what.keys) {
    if (out.back() != '[') out += ',';
    out.append("\"").append(key.hex()).append("\"");
  }
  return out += "]}\n\n";
}

}  // namespace cokv::cache

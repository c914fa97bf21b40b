#include "link/borrowed_windows.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_remembered = 8192;
constexpr std::size_t most_memories = 1024;

}  // namespace

borrowed_windows::window* borrowed_windows::find(const window_key& key) {
  const auto found = windows_.find(key);
  return found == windows_.end() ? nullptr : &found->second;
}

borrowed_windows::window& borrowed_windows::ask(const window_key& key, const prepared_executor& ex) {
  // What was refused may be asked for again.
  if (windows_.size() >= most_remembered)
    std::erase_if(windows_, [](const auto& w) { return w.second.asked->done() && w.second.pieces.empty(); });
  auto& w = windows_[key];
  w.asked = std::make_shared<link_job>(ex);
  return w;
}

void borrowed_windows::drop(const window_key& key) {
  const auto found = windows_.find(key);
  if (found == windows_.end()) return;
  found->second.asked->seal({});
  windows_.erase(found);
}

error_code borrowed_windows::granted(const window_key& key, const std::shared_ptr<link_job>& asked,
                                     const window_layout& layout, byte_stream& from) {
  for (auto number : layout.forgotten) memories_.erase(number);
  if (memories_.size() + layout.passed.size() > most_memories) return errc::protocol;
  for (auto number : layout.passed) {
    memory_handle handle;
    handle.file = from.take_attached();
    if (!handle.file || memories_.contains(number)) return errc::protocol;
    if (auto mapped = import_shared(handle)) memories_.emplace(number, std::move(*mapped));
  }
  // Given up meanwhile, and asked for anew perhaps: that has an answer of its own.
  auto* w = find(key);
  if (!w || w->asked != asked) return {};
  for (const auto& p : layout.pieces) {
    const auto memory = memories_.find(p.memory);
    const auto size = memory == memories_.end() ? ~std::uint64_t{0} : memory->second.size();
    if (p.offset > size || p.bytes > size - p.offset) return errc::protocol;
  }
  if (std::ranges::all_of(layout.pieces, [&](const auto& p) { return memories_.contains(p.memory); }))
    for (const auto& p : layout.pieces) {
      w->begins.push_back(w->size);
      w->pieces.push_back(memories_.at(p.memory).slice(p.offset, p.bytes));
      w->size += p.bytes;
    }
  asked->seal({});
  return {};
}

void borrowed_windows::clear() {
  for (auto& [key, w] : std::exchange(windows_, {})) w.asked->seal(errc::unavailable);
  memories_.clear();
}

}  // namespace cokv::detail

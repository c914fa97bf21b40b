#include "link/borrowed_windows.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_remembered = 8192;

}  // namespace

piece_cursor borrowed_windows::window::at(std::uint64_t offset) const {
  const auto i = static_cast<std::size_t>(std::ranges::upper_bound(begins, offset) - begins.begin()) - 1;
  return {pieces, i, offset - begins[i]};
}

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
  refused(key);
  windows_.erase(key);
}

void borrowed_windows::refused(const window_key& key) {
  if (const auto found = windows_.find(key); found != windows_.end()) found->second.asked->seal({});
}

error_code borrowed_windows::granted(const window_key& key, const window_layout& layout, byte_stream& from) {
  const auto found = windows_.find(key);
  for (auto number : layout.forgotten) memories_.erase(number);
  for (auto number : layout.passed) {
    memory_handle handle;
    handle.file = from.take_attached();
    if (!handle.file || memories_.contains(number)) return errc::protocol;
    if (auto mapped = import_shared(handle)) memories_.emplace(number, std::move(*mapped));
  }
  if (found == windows_.end()) return {};  // given up meanwhile
  auto& w = found->second;
  if (!std::ranges::all_of(layout.pieces, [&](const auto& p) { return memories_.contains(p.memory); }))
    return refused(key), error_code();
  for (const auto& p : layout.pieces) {
    const auto memory = memories_.find(p.memory);
    const auto size = memory->second.size();
    if (p.offset > size || p.bytes > size - p.offset) return errc::protocol;
    w.begins.push_back(w.size);
    w.pieces.push_back(memory->second.slice(p.offset, p.bytes));
    w.size += p.bytes;
  }
  w.asked->seal({});
  return {};
}

void borrowed_windows::clear() {
  for (auto& [key, w] : std::exchange(windows_, {})) w.asked->seal(errc::unavailable);
  memories_.clear();
}

}  // namespace cokv::detail

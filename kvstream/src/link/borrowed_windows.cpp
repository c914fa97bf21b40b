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

borrowed_windows::window& borrowed_windows::ask(const window_key& key, bool device_alone, const prepared_executor& ex) {
  // What was refused may be asked for again.
  if (windows_.size() >= most_remembered)
    std::erase_if(windows_, [](const auto& w) { return w.second.asked->done() && w.second.pieces.empty(); });
  auto& w = windows_[key];
  w.asked = std::make_shared<link_job>(ex);
  w.device_alone = device_alone;
  return w;
}

void borrowed_windows::drop(const window_key& key) {
  const auto found = windows_.find(key);
  if (found == windows_.end()) return;
  found->second.asked->seal({});
  windows_.erase(found);
}

void borrowed_windows::begin_copy(const window_key& key, const prepared_executor& ex) {
  auto& copies = copying_[key];
  if (!copies) {
    copies = std::make_shared<link_job>(ex);
    copies->seal({});
  }
  copies->begin_frame();
}

void borrowed_windows::end_copy(const window_key& key) {
  const auto found = copying_.find(key);
  const auto copies = found->second;
  copies->end_frame({});
  if (copies->done()) copying_.erase(found);
}

std::shared_ptr<link_job> borrowed_windows::copying(const window_key& key) const {
  const auto found = copying_.find(key);
  return found == copying_.end() ? nullptr : found->second;
}

error_code borrowed_windows::take_memories(const window_layout& layout, byte_stream& from, device_reach* device) {
  for (auto number : layout.forgotten) memories_.erase(number);
  if (memories_.size() + layout.passed.size() + layout.opened.size() > most_memories) return errc::protocol;
  if (!layout.opened.empty() && !device) return errc::protocol;
  for (auto number : layout.passed) {
    memory_handle handle;
    handle.file = from.take_attached();
    if (!handle.file || memories_.contains(number)) return errc::protocol;
    if (auto mapped = import_shared(handle)) memories_.emplace(number, std::move(*mapped));
  }
  for (const auto& o : layout.opened) {
    if (o.bytes == 0 || memories_.contains(o.memory)) return errc::protocol;
    auto opened = device->borrow({.kind = memory_kind::exportable, .bytes = o.bytes, .ipc = o.ipc});
    if (opened.error() == errc::out_of_range) return errc::protocol;  // it is smaller than was said
    if (opened) memories_.emplace(o.memory, std::move(*opened));
  }
  return {};
}

error_code borrowed_windows::granted(const window_key& key, const std::shared_ptr<link_job>& asked,
                                     const window_layout& layout, byte_stream& from, device_reach* device) {
  if (auto ec = take_memories(layout, from, device)) return ec;
  // Given up meanwhile, and asked for anew perhaps: that has an answer of its own.
  auto* w = find(key);
  if (!w || w->asked != asked) return {};
  for (const auto& p : layout.pieces) {
    const auto memory = memories_.find(p.memory);
    const auto size = memory == memories_.end() ? ~std::uint64_t{0} : memory->second.size();
    if (p.offset > size || p.bytes > size - p.offset) return errc::protocol;
  }
  const auto of_host = [&](const auto& p) { return memories_.at(p.memory).host_accessible(); };
  if (std::ranges::all_of(layout.pieces, [&](const auto& p) { return memories_.contains(p.memory); })) {
    if (const auto n = std::ranges::count_if(layout.pieces, of_host);
        n != 0 && (w->device_alone || static_cast<std::size_t>(n) != layout.pieces.size()))
      return errc::protocol;
    for (const auto& p : layout.pieces) {
      w->begins.push_back(w->size);
      w->pieces.push_back(memories_.at(p.memory).slice(p.offset, p.bytes));
      w->size += p.bytes;
    }
  }
  asked->seal({});
  return {};
}

void borrowed_windows::clear() {
  for (auto& [key, w] : std::exchange(windows_, {})) w.asked->seal(errc::unavailable);
  memories_.clear();
}

}  // namespace cokv::detail

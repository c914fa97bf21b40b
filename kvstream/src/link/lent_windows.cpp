#include "link/lent_windows.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_memories = 1024;
constexpr std::size_t most_pieces = (most_layout_bytes >> 1) / 20;

}  // namespace

result<lent_windows::grant> lent_windows::lend(std::shared_ptr<window_state> window, window_access access,
                                               std::function<void()> on_revoke) {
  const window_key key{window->ref.id, window->ref.generation, access};
  if (lent_.size() >= most || window->pieces.size() > most_pieces) return errc::unsupported;
  std::vector<memory_handle> handles;
  for (const auto& piece : window->pieces) {
    auto handle = export_shared(piece);
    if (!handle) return handle.error();
    handles.push_back(std::move(*handle));
  }
  grant out;
  // Numbers of memory that is gone are of no use to the peer, whose mappings would keep it from the system.
  std::erase_if(memories_, [&](const auto& m) {
    if (m.second.file.expired()) forgotten_.push_back(m.second.number);
    return m.second.file.expired();
  });
  for (auto& h : handles) {
    auto known = memories_.find(h.file.get());
    if (known == memories_.end()) {
      known = memories_.emplace(h.file.get(), memory{h.file, next_number_++}).first;
      out.layout.passed.push_back(known->second.number);
      out.passed.push_back(h.file);
    }
    auto& pieces = out.layout.pieces;
    const auto number = known->second.number;
    if (!pieces.empty() && pieces.back().memory == number && pieces.back().offset + pieces.back().bytes == h.offset)
      pieces.back().bytes += h.bytes;
    else
      pieces.push_back({number, h.offset, h.bytes});
  }
  if (out.passed.size() > most_passed || memories_.size() > most_memories) {
    for (const auto& file : out.passed) memories_.erase(file.get());
    return errc::unsupported;
  }
  out.layout.forgotten = std::exchange(forgotten_, {});
  std::ranges::sort(out.layout.forgotten);
  auto pieces = window->pieces;
  auto use = std::make_unique<window_use>(std::move(window), access, std::move(on_revoke));
  lent_.insert_or_assign(key, lent{std::move(pieces), std::move(use)});
  return out;
}

std::shared_ptr<void> lent_windows::take() {
  for (auto& [key, l] : lent_) l.use->keep();
  return std::make_shared<std::map<window_key, lent>>(std::exchange(lent_, {}));
}

}  // namespace cokv::detail

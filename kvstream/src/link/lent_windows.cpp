#include "link/lent_windows.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_memories = 1024;
constexpr std::size_t most_pieces = (most_layout_bytes >> 1) / 20;

}  // namespace

result<lent_windows::grant> lent_windows::lend(std::shared_ptr<window_state> window, window_access access, welcome what,
                                               std::function<void()> on_revoke) {
  const window_key key{window->ref.id, window->ref.generation, access};
  const auto& pieces = window->pieces;
  if (lent_.size() >= most || pieces.size() > most_pieces) return errc::unsupported;
  grant out;
  error_code ec = errc::unsupported;
  if (what.host && on_host(pieces))
    ec = lay_out_host(pieces, out);
  else if (what.device && std::ranges::none_of(pieces, &buffer::host_accessible))
    ec = lay_out_device(pieces, *what.device, out);
  if (ec) return ec;
  out.layout.forgotten = std::exchange(forgotten_, {});
  std::ranges::sort(out.layout.forgotten);
  auto held = pieces;
  auto use = std::make_unique<window_use>(std::move(window), access, std::move(on_revoke));
  lent_.insert_or_assign(key, lent{std::move(held), std::move(use)});
  return out;
}

error_code lent_windows::lay_out_host(const std::vector<buffer>& pieces, grant& out) {
  std::vector<memory_handle> handles;
  for (const auto& piece : pieces) {
    auto handle = export_shared(piece);
    if (!handle) return handle.error();
    handles.push_back(std::move(*handle));
  }
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
    add(out.layout, known->second.number, h);
  }
  if (out.passed.size() <= most_passed && memories_.size() + opened_.size() <= most_memories) return {};
  for (const auto& file : out.passed) memories_.erase(file.get());
  return errc::unsupported;
}

error_code lent_windows::lay_out_device(const std::vector<buffer>& pieces, device_reach& device, grant& out) {
  std::map<std::array<std::byte, 64>, opened> more;
  for (const auto& piece : pieces) {
    auto h = device.lend(piece);
    if (!h) return errc::unsupported;
    auto known = opened_.find(h->ipc);
    if (known == opened_.end() && (known = more.find(h->ipc)) == more.end()) {
      auto held = device.borrow({.kind = h->kind, .ipc = h->ipc});
      if (!held) return errc::unsupported;
      known = more.emplace(h->ipc, opened{std::move(*held), next_number_++}).first;
      out.layout.opened.push_back({known->second.number, h->whole, h->ipc});
    }
    add(out.layout, known->second.number, *h);
  }
  if (more.size() > most_passed || memories_.size() + opened_.size() + more.size() > most_memories)
    return errc::unsupported;
  opened_.merge(more);
  return {};
}

void lent_windows::add(window_layout& layout, std::uint32_t number, const memory_handle& h) {
  auto& pieces = layout.pieces;
  if (!pieces.empty() && pieces.back().memory == number && pieces.back().offset + pieces.back().bytes == h.offset)
    pieces.back().bytes += h.bytes;
  else
    pieces.push_back({number, h.offset, h.bytes});
}

std::shared_ptr<void> lent_windows::take() {
  for (auto& [key, l] : lent_) l.use->keep();
  using all = std::pair<std::map<std::array<std::byte, 64>, opened>, std::map<window_key, lent>>;
  return std::make_shared<all>(std::exchange(opened_, {}), std::exchange(lent_, {}));
}

}  // namespace cokv::detail

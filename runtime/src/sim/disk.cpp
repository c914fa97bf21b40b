#include "disk.hpp"

#include <set>

namespace cokv::sim {

void disk::inode::write(std::size_t offset, std::span<const std::byte> bytes, std::vector<std::byte>& to) {
  if (to.size() < offset + bytes.size()) to.resize(offset + bytes.size());
  std::copy(bytes.begin(), bytes.end(), to.begin() + static_cast<std::ptrdiff_t>(offset));
}

disk& disk::of(sim_context& context) { return *context.home().disk; }

void disk::apply(const change& c, names& to) const {
  for (const auto& [path, entry] : c)
    if (entry)
      to.insert_or_assign(path, *entry);
    else
      to.erase(path);
}

void disk::commit(change c) {
  apply(c, live_);
  journal_.push_back(std::move(c));
}

bool disk::aligned(file_alignment to, std::uint64_t offset, asio::const_buffer memory) {
  if (to.offset == 1) return true;
  ++counts.direct;
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const bool good = offset % to.offset == 0 && memory.size() % to.offset == 0 && address % to.memory == 0;
  counts.misaligned += !good;
  return good;
}

bool disk::exists(const std::string& path) const { return live_.contains(path); }

std::vector<std::byte> disk::contents(const std::string& path) const {
  auto found = live_.find(path);
  return found == live_.end() || !found->second.file ? std::vector<std::byte>() : found->second.file->live;
}

bool disk::flip(const std::string& path, std::size_t offset, unsigned bit) {
  auto found = live_.find(path);
  if (found == live_.end() || !found->second.file || offset >= found->second.file->live.size()) return false;
  inode& file = *found->second.file;
  file.live[offset] ^= std::byte(1 << (bit & 7));
  if (offset < file.durable.size()) file.durable[offset] ^= std::byte(1 << (bit & 7));
  return true;
}

std::vector<std::string> disk::files() const {
  std::vector<std::string> all;
  for (const auto& [path, entry] : live_)
    if (entry.file) all.push_back(path);
  return all;
}

std::uint64_t disk::used() const {
  std::uint64_t bytes = 0;
  for (const auto& [path, entry] : live_)
    if (entry.file) bytes += entry.file->live.size();
  return bytes;
}

void disk::crash(sim_context& context) {
  std::size_t survive = context.below(journal_.size() + 1);
  for (std::size_t i = 0; i < survive; ++i) apply(journal_[i], durable_);
  journal_.clear();
  live_ = durable_;
  std::set<const inode*> seen;
  for (auto& [path, entry] : live_) {
    if (!entry.file || !seen.insert(entry.file.get()).second) continue;
    inode& file = *entry.file;
    for (const inode::pending& w : file.unsynced) {
      std::span<const std::byte> kept(w.bytes);
      if (context.chance(faults.lost)) {
        kept = {};
        ++counts.lost;
      } else if (context.chance(faults.torn)) {
        kept = kept.first(std::min<std::size_t>(kept.size(), 512 * context.below(kept.size() / 512 + 1)));
        ++counts.torn;
      }
      if (!kept.empty()) inode::write(w.offset, kept, file.durable);
    }
    file.unsynced.clear();
    file.live = file.durable;
  }
}

}  // namespace cokv::sim

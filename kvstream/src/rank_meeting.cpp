#include "rank_meeting.hpp"

#include <algorithm>
#include <map>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint32_t magic = 0x4e766b63, version = 2;  // "ckvN"
constexpr std::size_t head = 8;

std::vector<std::byte> begun() {
  std::vector<std::byte> out;
  append(out, magic);
  append(out, version);
  return out;
}

bool is(std::span<const std::byte> message, std::size_t size) {
  return message.size() == size && get<std::uint32_t>(message.data()) == magic &&
         get<std::uint32_t>(message.data() + 4) == version;
}

}  // namespace

std::vector<std::byte> encode_gpu(const nccl_gpu& gpu) {
  auto out = begun();
  append(out, gpu.version);
  append(out, std::span<const std::byte>(gpu.uuid));
  append(out, std::uint32_t{gpu.shares});
  return out;
}

std::vector<std::byte> encode_group_id(std::span<const std::byte> id) {
  auto out = begun();
  append(out, id);
  out.resize(group_id_bytes);
  return out;
}

std::vector<std::byte> encode_joined(bool joined) {
  auto out = begun();
  append(out, std::uint32_t{joined});
  return out;
}

result<nccl_gpu> decode_gpu(std::span<const std::byte> message) {
  if (!is(message, gpu_bytes)) return errc::protocol;
  nccl_gpu out{.version = get<std::uint32_t>(message.data() + head)};
  std::ranges::copy(message.subspan(head + 4, out.uuid.size()), out.uuid.begin());
  const auto shares = get<std::uint32_t>(message.data() + head + 4 + out.uuid.size());
  if (shares > 1) return errc::protocol;
  out.shares = shares == 1;
  return out;
}

result<std::vector<std::byte>> decode_group_id(std::span<const std::byte> message) {
  if (!is(message, group_id_bytes)) return errc::protocol;
  const auto id = message.subspan(head);
  if (std::ranges::all_of(id, [](std::byte b) { return b == std::byte{}; })) return std::vector<std::byte>();
  return std::vector<std::byte>(id.begin(), id.end());
}

result<bool> decode_joined(std::span<const std::byte> message) {
  if (!is(message, joined_bytes)) return errc::protocol;
  const auto joined = get<std::uint32_t>(message.data() + head);
  if (joined > 1) return errc::protocol;
  return joined == 1;
}

bool can_add_up(std::span<const nccl_gpu> ranks) {
  std::map<std::array<std::byte, 16>, bool> gpus;  // whether all of it so far may share it
  for (const auto& r : ranks) {
    if (r.version == 0 || r.version != ranks[0].version) return false;
    const auto [at, first] = gpus.emplace(r.uuid, r.shares);
    if (!first && !(at->second && r.shares)) return false;
  }
  return true;
}

}  // namespace cokv::detail

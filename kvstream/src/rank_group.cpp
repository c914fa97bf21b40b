#include "cokv/kvstream/rank_group.hpp"

#include <algorithm>
#include <vector>

#include "cokv/kvstream/long_message.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "rank_meeting.hpp"

namespace cokv {
namespace {

constexpr std::size_t shortest_cut = 8 << 10;  // numbers: below it two messages' times cost more than what they save

using parts = std::vector<std::vector<float>>;  // by rank

// To each other rank what it is to have, and from each what it has for this one. Both at once: two that sent first would wait
// for each other where links are full.
template <class To, class From>
awaitable<error_code> exchange(std::span<const peer_link> links, To to, From from) {
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    for (std::size_t r = 0; r < links.size(); ++r) {
      if (!links[r]) continue;
      group.spawn(send_long(links[r], std::as_bytes(to(r))));
      group.spawn(receive_long_into(links[r], std::as_writable_bytes(from(r))));
    }
  });
  co_return v.error();
}

// In the order of ranks, own numbers at their place.
void sum_up(std::span<float> own, std::uint32_t self, const parts& others) {
  auto sum = self == 0 ? std::vector<float>(own.begin(), own.end()) : others[0];
  for (std::size_t r = 1; r < others.size(); ++r) {
    const float* more = r == self ? own.data() : others[r].data();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  std::ranges::copy(sum, own.begin());
}

using messages = std::vector<std::vector<std::byte>>;  // by rank

// From each what it says to all.
awaitable<result<messages>> say(std::span<const peer_link> links, std::uint32_t self, std::vector<std::byte> own) {
  messages said(links.size(), std::vector<std::byte>(own.size()));
  said[self] = std::move(own);
  const auto ec = co_await exchange(
      links, [&](std::size_t) { return std::span(std::as_const(said[self])); },
      [&](std::size_t r) { return std::span(said[r]); });
  if (ec) co_return ec;
  co_return said;
}

// Rank 0 makes it.
awaitable<result<std::vector<std::byte>>> group_id(std::span<const peer_link> links, std::uint32_t self, device where) {
  if (self != 0) {
    std::vector<std::byte> said(detail::group_id_bytes);
    if (auto ec = co_await receive_long_into(links[0], said)) co_return ec;
    co_return detail::decode_group_id(said);
  }
  auto id = co_await make_nccl_group_id(std::move(where));
  const auto said = detail::encode_group_id(id ? *id : std::vector<std::byte>());
  for (const auto& l : links)
    if (l)
      if (auto ec = co_await send_long(l, said)) co_return ec;
  co_return detail::decode_group_id(said);
}

}  // namespace

awaitable<error_code> rank_group::meet(device where, stream behind, nccl_group_options options) {
  if (size() < 2) co_return error_code();
  const auto gpu = co_await nccl_gpu_of(where);
  const auto devices = co_await say(links_, self_, detail::encode_gpu(gpu ? *gpu : nccl_gpu()));
  if (!devices) co_return devices.error();
  std::vector<nccl_gpu> gpus;
  for (const auto& said : *devices) {
    const auto one = detail::decode_gpu(said);
    if (!one) co_return one.error();
    gpus.push_back(*one);
  }
  if (!detail::can_add_up(gpus)) co_return error_code();
  auto id = co_await group_id(links_, self_, where);
  if (!id) co_return id.error();
  std::shared_ptr<nccl_group> joined;
  if (!id->empty())
    if (auto made = co_await nccl_group::join(where, behind, {self_, size(), std::move(*id)}, options))
      joined = std::move(*made);
  // Whoever is not there would be waited for in every sum.
  const auto all = co_await say(links_, self_, detail::encode_joined(joined != nullptr));
  if (!all) co_return all.error();
  bool whole = true;
  for (const auto& said : *all) {
    const auto one = detail::decode_joined(said);
    if (!one) co_return one.error();
    whole = whole && *one;
  }
  if (whole) by_nccl_ = std::move(joined);
  co_return error_code();
}

std::string_view rank_group::by() const noexcept {
  return size() < 2 ? "nobody" : by_nccl_ ? "nccl" : by_mpi_ ? "mpi" : "links";
}

awaitable<void> rank_group::leave(error_code why) {
  if (!by_nccl_) co_return;
  by_nccl_->abort(why);
  co_await by_nccl_->closed();
}

awaitable<error_code> rank_group::all_reduce(std::span<float> numbers) {
  const auto ranks = links_.size();
  if (ranks < 2 || numbers.empty()) co_return error_code();
  if (by_mpi_) co_return co_await by_mpi_->all_reduce(numbers);
  const bool cut = ranks > 2 && numbers.size() >= shortest_cut;
  const auto part = [&](std::size_t r) {
    if (!cut) return numbers;
    const auto first = numbers.size() * r / ranks, end = numbers.size() * (r + 1) / ranks;
    return numbers.subspan(first, end - first);
  };
  const auto own = part(self_);
  parts others(ranks, std::vector<float>(own.size()));
  if (auto ec = co_await exchange(links_, part, [&](std::size_t r) { return std::span(others[r]); })) co_return ec;
  sum_up(own, self_, others);
  if (!cut) co_return error_code();
  co_return co_await exchange(links_, [&](std::size_t) { return own; }, part);
}

}  // namespace cokv

#include "cokv/kvstream/rank_group.hpp"

#include <algorithm>
#include <vector>

#include "cokv/kvstream/long_message.hpp"
#include "cokv/runtime/with.hpp"

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

}  // namespace

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

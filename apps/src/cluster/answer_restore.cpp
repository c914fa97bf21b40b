// Copies of answers that were lost elsewhere, taken and put back into blocks.
#include <algorithm>

#include "cluster/answer_copies_state.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {
namespace {

constexpr std::uint64_t most_at_once = 1 << 20;  // bytes that are unpacked in a row

}  // namespace

awaitable<answer_copies::taken> answer_copies::take(std::string id, lost_answer lost, std::vector<token_id> tokens) {
  const auto s = state_;
  const auto owner = worker_of(lost.life);
  const auto each = s->options.wire.token_bytes();
  const auto most = tokens.empty() ? 0 : static_cast<std::uint32_t>(tokens.size() - 1);
  for (auto round = most_rounds; round-- > 0;)
    for (auto& r : s->ranks) {
      taken out;
      auto tag = root_of(s->options.wire);
      for (std::size_t i = 0;; ++i) {
        auto copy = co_await r->copies.take(owner, copy_of(lost.life, id, lost.attempt, round, i));
        if (!copy) break;
        taken::stretch part{out.tokens, {std::move(copy->memory), {}}};
        std::uint64_t begin = 0;
        for (auto& step : copy->steps) {
          const auto n = (step.end - begin) / each;
          if ((step.end - begin) % each != 0 || out.tokens + n > most) break;
          const auto next = chain(tag, std::span(tokens).subspan(out.tokens, n));
          if (next != step.tag) break;
          tag = next;
          begin = step.end;
          out.tokens += static_cast<std::uint32_t>(n);
          part.what.steps.push_back(step);
        }
        const bool whole = part.what.steps.size() == copy->steps.size();
        if (!part.what.steps.empty()) out.parts.push_back(std::move(part));
        if (!whole) break;
      }
      if (out.tokens > 0) co_return out;
    }
  co_return taken();
}

// Packed steps lie layer by layer; what the room has already is somebody else's too, and is left out of each layer.
awaitable<error_code> answer_copies::restore(taken from, kv_room into) {
  const auto s = state_;
  const auto& shape = into.memory.layout().shape();
  const auto bt = shape.block_tokens();
  const auto each = s->options.wire.token_bytes(), in_layer = each / shape.layers();
  const scatter_options how{.through = s->unpacks->get(), .algorithm = digest_algorithm::none};
  bool here = true;  // the host reaches the room
  std::uint64_t at_once = 0;
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    semaphore room(s->ex(), packer::buffers);
    const auto bring = [&](const buffer& packed, std::uint64_t offset, index_range layers,
                           index_range tokens) -> awaitable<error_code> {
      const auto begin = tokens.first / bt, end = (static_cast<std::uint32_t>(tokens.end()) + bt - 1) / bt;
      slice what(shape, layers, {into.blocks.begin() + begin, into.blocks.begin() + end});
      what.tokens({tokens.first % bt, tokens.count});
      if (here) {
        const auto bytes = what.bytes();
        const auto ec = unpack_here(into.memory, what, packed.bytes().subspan(offset, bytes));
        if ((at_once += bytes) > most_at_once) {
          at_once = 0;
          co_await asio::post(s->ex(), asio::deferred);  // others have a turn
        }
        if (ec != errc::wrong_device) co_return ec;
        here = false;
      }
      permit turn = co_await room.async_acquire();
      group.spawn([](source out, std::uint64_t offset, kv_view to, slice what, scatter_options how,
                     permit) -> awaitable<error_code> {
        auto moved = co_await async_scatter(out, offset, to, what, how, as_result);
        co_return moved ? error_code() : moved.error();
      }(local_window(packed, s->moves).from(), offset, into.memory, std::move(what), how, std::move(turn)));
      co_return error_code();
    };
    for (auto& part : from.parts) {
      std::uint64_t begin = 0;
      auto at = part.first;
      for (auto& step : part.what.steps) {
        const auto n = static_cast<std::uint32_t>((step.end - begin) / each);
        const auto skip = std::min(n, into.first > at ? into.first - at : 0);
        const index_range left{at + skip, n - skip};
        error_code ec;
        if (skip == 0) ec = co_await bring(part.what.memory, begin, {0, shape.layers()}, left);
        for (std::uint32_t l = 0; !ec && skip > 0 && left.count > 0 && l < shape.layers(); ++l)
          ec = co_await bring(part.what.memory, begin + l * n * in_layer + skip * in_layer, {l, 1}, left);
        if (ec) co_return ec;
        begin = step.end;
        at += n;
      }
    }
    co_return error_code();
  });
  if (!v.error()) s->restored += from.tokens;
  co_return v.error();
}

}  // namespace cokv::cluster

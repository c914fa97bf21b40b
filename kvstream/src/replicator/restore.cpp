#include "cokv/kvstream/frame.hpp"
#include "cokv/kvstream/replicator.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/with.hpp"
#include "replicator/replica_message.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t under_way = 16;  // slices

awaitable<result<replica_message>> ask(peer_link holder, replica_message what) {
  if (auto sent = co_await holder.async_send(encode(what), as_result); !sent) co_return sent.error();
  for (;;) {
    auto raw = co_await holder.async_receive(as_result);
    if (!raw) co_return raw.error();
    const auto m = decode_replica(*raw);
    if (!m) co_return m.error();
    if (m->type != replica_type::copy || m->owner != what.owner || m->microbatch != what.microbatch ||
        m->epoch != what.epoch)
      continue;  // the answer to what was asked before, and given up
    if (m->code != 0) co_return from_wire(m->code);
    if (m->steps != what.steps || m->window.size != what.bytes) co_return errc::protocol;
    co_return *m;
  }
}

awaitable<verdict> bring(source from, restore_request what) {
  return with(task_group{}, [from, what](task_group& group) -> awaitable<void> {
    semaphore room(co_await asio::this_coro::executor, under_way);
    std::uint64_t offset = 0;
    for (const auto& step : what.steps)
      for (const auto& part : step.what) {
        permit turn = co_await room.async_acquire();
        group.spawn([](awaitable<result<transferred>> moving, permit) -> awaitable<error_code> {
          auto moved = co_await std::move(moving);
          co_return moved ? error_code() : moved.error();
        }(scatter(from, offset, step.view, part, {.through = what.through, .algorithm = digest_algorithm::none}),
                                                                      std::move(turn)));
        offset += part.bytes();
      }
  });
}

}  // namespace

awaitable<result<transferred>> restore(peer_link from, restore_request what) {
  replica_message wanted{.type = replica_type::fetch,
                         .steps = static_cast<std::uint32_t>(what.steps.size()),
                         .epoch = what.epoch,
                         .owner = what.lost,
                         .microbatch = what.microbatch};
  for (const auto& step : what.steps)
    for (const auto& part : step.what) wanted.bytes += part.bytes();
  if (wanted.bytes == 0) co_return errc::invalid_argument;
  const auto copy = co_await ask(from, wanted);
  if (!copy) co_return copy.error();
  const auto v = co_await bring(from.from(copy->window), what);
  wanted.type = replica_type::release;
  (void)co_await from.async_send(encode(wanted), as_result);
  if (!v) co_return v.error();
  co_return transferred{wanted.bytes, 0};
}

}  // namespace cokv::detail

#include "cokv/kvstream/gather.hpp"

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::detail {
namespace {

// Cuts pieces into groups that fill a staging buffer each.
std::vector<std::vector<buffer>> cut(std::vector<buffer> pieces, std::uint64_t room) {
  std::vector<std::vector<buffer>> groups;
  std::uint64_t left = 0;
  for (auto& piece : pieces) {
    for (std::uint64_t at = 0; at < piece.size();) {
      if (left == 0) {
        groups.emplace_back();
        left = room;
      }
      const auto n = std::min<std::uint64_t>(left, piece.size() - at);
      groups.back().push_back(piece.slice(at, n));
      at += n;
      left -= n;
    }
  }
  return groups;
}

std::uint64_t bytes_of(const std::vector<buffer>& pieces) {
  std::uint64_t n = 0;
  for (const auto& p : pieces) n += p.size();
  return n;
}

// Enqueues with room made for it. The stream keeps the order in which groups are packed, and so the digest's.
template <class Kernel>
awaitable<error_code> launch(stream on, std::string_view name, const Kernel& kernel, event begin) {
  if (begin.ready() && begin.status()) co_return begin.status();
  for (bool waits = !begin.ready();;) {
    auto ec = waits ? on.wait(begin) : error_code();
    if (!ec) {
      waits = false;
      ec = on.launch(name, kernel);
    }
    if (ec != errc::queue_full) co_return ec;
    if (auto room = co_await on.async_room(as_result); !room) co_return room.error();
  }
}

// A failed or cancelled scope has kernels enqueued that still touch the slice: it ends after them.
awaitable<error_code> stopped(const verdict& v, const stream& kernels) {
  if (v) co_return error_code();
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  (void)co_await kernels.record().async_wait(asio::as_tuple(asio::deferred));
  co_return v.error();
}

}  // namespace

awaitable<result<transferred>> gather(kv_view from, slice what, sink to, std::uint64_t offset, gather_options options) {
  auto pieces = from.pieces(what);
  if (!pieces) co_return pieces.error();
  const transferred all{bytes_of(*pieces), 0};
  if (auto ec = to.check(offset, all.bytes, options.level)) co_return ec;
  if (!options.through) {
    if (auto ec = co_await to.backend()->put(offset, std::move(*pieces), options.begin)) co_return ec;
    co_return all;
  }

  auto groups = cut(std::move(*pieces), options.through->staging.buffer_bytes());
  auto digest = std::make_shared<digest_state>();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    for (auto& pieces_of_group : groups) {
      const auto n = bytes_of(pieces_of_group);
      buffer staged = (co_await options.through->staging.async_acquire()).slice(0, n);
      auto pack = [staged, digest, pieces = std::move(pieces_of_group)] {
        std::size_t at = 0;
        for (const auto& p : pieces) {
          digest->copy(staged.bytes().subspan(at, p.size()), p.bytes());
          at += p.size();
        }
      };
      if (auto ec = co_await launch(options.through->kernels, "pack", pack, options.begin)) co_return ec;
      const event packed = options.through->kernels.record();
      group.spawn(to.backend()->put(offset, {std::move(staged)}, packed));
      offset += n;
    }
    co_return error_code();
  });
  co_await asio::this_coro::throw_if_cancelled(false);  // what was cancelled ends after its kernels all the same
  if (auto ec = co_await stopped(v, options.through->kernels)) co_return ec;
  co_return transferred{all.bytes, digest->value()};
}

awaitable<result<transferred>> scatter(source from, std::uint64_t offset, kv_view to, slice what,
                                       scatter_options options) {
  auto pieces = to.pieces(what);
  if (!pieces) co_return pieces.error();
  const transferred all{bytes_of(*pieces), 0};
  if (auto ec = from.check(offset, all.bytes)) co_return ec;
  if (!options.through) {
    if (options.digest) co_return errc::invalid_argument;
    if (auto ec = co_await from.backend()->get(offset, std::move(*pieces), options.begin)) co_return ec;
    if (auto ec = to.check(what)) co_return ec;  // written, but for nobody: freed meanwhile
    co_return all;
  }

  // Digests chain, so groups are unpacked in order; the next one is on its way meanwhile.
  auto groups = cut(std::move(*pieces), options.through->staging.buffer_bytes());
  auto digest = std::make_shared<digest_state>();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    std::vector<std::shared_ptr<semaphore>> turns;
    for (std::size_t i = 0; i <= groups.size(); ++i)
      turns.push_back(std::make_shared<semaphore>(from.get_executor(), i == 0 ? 1 : 0));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto n = bytes_of(groups[i]);
      buffer staged = (co_await options.through->staging.async_acquire()).slice(0, n);
      group.spawn([&, staged = std::move(staged), pieces = std::move(groups[i]), at = offset, mine = turns[i],
                   next = turns[i + 1]]() mutable -> awaitable<error_code> {
        if (auto ec = co_await from.backend()->get(at, {staged}, options.begin)) co_return ec;
        auto my_turn = co_await mine->async_acquire();
        auto unpack = [staged = std::move(staged), digest, pieces = std::move(pieces)] {
          std::size_t done = 0;
          for (const auto& p : pieces) {
            digest->copy(p.bytes(), staged.bytes().subspan(done, p.size()));
            done += p.size();
          }
        };
        if (auto ec = co_await launch(options.through->kernels, "unpack", unpack, {})) co_return ec;
        next->release();
        co_await asio::this_coro::throw_if_cancelled(false);
        co_return co_await drained(options.through->kernels.record());
      });
      offset += n;
    }
    co_return error_code();
  });
  co_await asio::this_coro::throw_if_cancelled(false);  // what was cancelled ends after its kernels all the same
  if (auto ec = co_await stopped(v, options.through->kernels)) co_return ec;
  if (options.digest && digest->value() != *options.digest) co_return errc::digest_mismatch;
  if (auto ec = to.check(what)) co_return ec;
  co_return transferred{all.bytes, digest->value()};
}

}  // namespace cokv::detail

#include "cokv/kvstream/converted.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "transfer/packing_parts.hpp"

namespace cokv {
namespace {

using detail::enqueue;

// So little is converted at once where it is asked for, as gathers pack it.
constexpr std::uint64_t most_here = 64 << 10;
constexpr std::size_t alignment = 64;  // of what was converted, in its staging buffer

std::uint64_t bytes_of(std::span<const buffer> pieces) {
  std::uint64_t n = 0;
  for (const auto& p : pieces) n += p.size();
  return n;
}

// What one staging buffer takes.
struct batch {
  std::vector<buffer> pieces;
  std::uint64_t bytes = 0;
};

std::vector<batch> cut(std::vector<buffer> pieces, std::uint64_t room) {
  std::vector<batch> out;
  for (auto& piece : pieces)
    for (std::uint64_t at = 0; at < piece.size();) {
      if (out.empty() || out.back().bytes == room) out.emplace_back();
      auto& b = out.back();
      const auto n = std::min<std::uint64_t>(piece.size() - at, room - b.bytes);
      b.pieces.push_back(piece.slice(at, n));
      b.bytes += n;
      at += n;
    }
  return out;
}

class converting_sink final : public detail::sink_backend {
 public:
  converting_sink(sink to, conversion how) : to_(std::move(to)), how_(how) {}

  asio::any_io_executor get_executor() const override { return to_.get_executor(); }
  std::uint64_t size() const override { return to_.size() / size_of(how_.to) * size_of(how_.from); }
  completion_level reach() const override { return to_.reach(); }
  awaitable<error_code> commit() override { return to_.backend()->commit(); }

  awaitable<error_code> put(std::uint64_t offset, std::vector<buffer> pieces, event begin,
                            completion_level level) override {
    return put(to_, how_, offset, std::move(pieces), std::move(begin), level);
  }

 private:
  static awaitable<error_code> put(sink to, conversion how, std::uint64_t offset, std::vector<buffer> pieces,
                                   event begin, completion_level level) {
    const bool whole = offset % size_of(how.from) == 0 &&
                       std::ranges::all_of(pieces, [&](auto& p) { return p.size() % size_of(how.from) == 0; });
    if (!whole || !convertible(how.from) || !convertible(how.to)) co_return errc::invalid_argument;
    const bool on_host = std::ranges::all_of(pieces, &buffer::host_accessible);
    const auto all = bytes_of(pieces);
    const auto& through = *how.through;
    const auto& kernels = through.kernels;
    // Behind what a device copies there, where it has to.
    const auto each = size_of(how.to) + (on_host ? 0 : size_of(how.from));
    if (through.staging.buffer_bytes() < 2 * alignment) co_return errc::invalid_argument;
    const auto room = (through.staging.buffer_bytes() - alignment) / each * size_of(how.from);
    if (!begin.ready())
      if (auto waited = co_await begin.async_wait(as_result); !waited) co_return waited.error();
    if (begin.status()) co_return begin.status();
    const bool here = on_host && all <= most_here;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
      permit turn = co_await through.turn->async_acquire();  // as gathers: staging for one that goes on
      for (auto& part : cut(std::move(pieces), room)) {
        buffer staging = co_await through.staging.async_acquire();
        std::span<const buffer> raw = part.pieces;
        buffer copied;
        std::uint64_t at = 0;
        if (!on_host) {
          copied = staging.slice(0, part.bytes);
          at = (part.bytes + alignment - 1) / alignment * alignment;
          std::vector<copy_op> copies;
          for (std::uint64_t n = 0; auto& p : part.pieces) {
            const auto size = p.size();
            copies.push_back({copied.slice(n, size), std::move(p)});
            n += size;
          }
          if (auto ec = co_await enqueue(kernels, {}, [&] { return stream(kernels).copy_batch(copies, "convert"); }))
            co_return ec;
          if (auto there = co_await kernels.record().async_wait(as_result); !there) co_return there.error();
          raw = {&copied, 1};
        }
        auto staged = staging.slice(at, how.converted_bytes(part.bytes));
        const auto lost = std::make_shared<bool>(false);
        auto kernel = [how, staged, lost, from = std::vector(raw.begin(), raw.end())] {
          auto to = staged.bytes();
          for (const auto& p : from) {
            *lost |= !convert(p.bytes(), how.from, to, how.to);
            to = to.subspan(how.converted_bytes(p.size()));
          }
        };
        error_code ec = errc::unsupported;
        if (!here) {
          ec = co_await enqueue(kernels, {}, [&] { return stream(kernels).launch("convert", kernel); });
          if (!ec)
            if (auto done = co_await kernels.record().async_wait(as_result); !done) co_return done.error();
        }
        if (ec == errc::unsupported) {  // little, or the stream is of a device that runs no functions of the host
          if (!here) co_await asio::post(to.get_executor(), asio::deferred);  // others have a turn
          kernel();
          ec = {};
        }
        if (ec) co_return ec;
        if (*lost) co_return errc::out_of_range;
        group.spawn(to.backend()->put(how.converted_bytes(offset), {std::move(staged)}, event(), level));
        offset += part.bytes;
      }
      co_return error_code();
    });
    co_await asio::this_coro::throw_if_cancelled(false);
    co_return co_await detail::stopped(v, kernels);
  }

  sink to_;
  conversion how_;
};

}  // namespace

sink converted(sink to, conversion how) { return sink(std::make_shared<converting_sink>(std::move(to), how)); }

}  // namespace cokv

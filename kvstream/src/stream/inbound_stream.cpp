#include <algorithm>
#include <stdexcept>

#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "stream/leg_parts.hpp"

namespace cokv {
namespace detail {

struct inbound_state {
  struct landing {
    std::uint32_t leg = 0;
    leg_parts parts;
    window at;
  };
  window_table windows;
  stream_side side;
  std::vector<landing> landings;
};

namespace {

// Two parts in the same memory would be whichever came last.
bool overlap(std::vector<buffer> pieces) {
  std::ranges::sort(pieces, {}, &buffer::data);
  for (std::size_t i = 1; i < pieces.size(); ++i)
    if (pieces[i - 1].data() + pieces[i - 1].size() > pieces[i].data()) return true;
  return false;
}

error_code expose(inbound_state& s) {
  std::vector<buffer> all;
  for (auto index : s.side.way.received_by(s.side.self)) {
    const auto& leg = s.side.way.legs()[index];
    auto parts = parts_of(s.side, leg, leg.to);
    if (parts.bytes == 0) continue;
    std::vector<buffer> pieces;
    for (const auto& part : parts.parts) {
      auto more = s.side.memory.pieces(part.what);
      if (!more) return more.error();
      pieces.insert(pieces.end(), more->begin(), more->end());
    }
    all.insert(all.end(), pieces.begin(), pieces.end());
    auto at = s.windows.expose(std::move(pieces), window_access::put);
    if (!at) return at.error();
    s.landings.push_back({index, std::move(parts), std::move(*at)});
  }
  return overlap(std::move(all)) ? make_error_code(errc::invalid_argument) : error_code();
}

bool whole(const inbound_state& s, worker from) {
  return std::ranges::all_of(
      s.landings, [&](const auto& l) { return s.side.way.legs()[l.leg].from.worker != from || l.at.committed(); });
}

awaitable<error_code> drain(std::shared_ptr<inbound_state> s) {
  for (auto& l : s->landings)
    if (auto done = co_await l.at.async_revoke(as_result); !done) co_return done.error();
  co_return error_code();
}

awaitable<error_code> arrive(std::shared_ptr<inbound_state> s, stream_peers from) {
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (auto& [sender, link] : from)
      group.spawn([&group, s, sender = sender, link = link]() mutable -> awaitable<void> {
        const auto down = co_await link.async_closed(as_result);  // or whoever waits for all of it was cancelled
        if (down && !whole(*s, sender)) group.fail(errc::unavailable);
      });
    for (auto& l : s->landings) co_await l.at.async_committed();
    group.cancel();
  });
  if (auto ec = v.error()) co_return ec;
  for (const auto& l : s->landings)
    if (l.at.bytes_put() < l.parts.bytes) co_return errc::protocol;  // committed, and not all there
  if (auto ec = co_await drain(s)) co_return ec;
  for (const auto& l : s->landings)
    for (const auto& part : l.parts.parts)
      if (auto ec = s->side.memory.check(part.what)) co_return ec;
  co_return error_code();
}

}  // namespace

void stream_in(std::shared_ptr<inbound_state> in, stream_peers from, done_handler h) {
  const auto ex = in->windows.get_executor();
  run_as_operation(ex, arrive(std::move(in), std::move(from)), std::move(h));
}

void stream_revoke(std::shared_ptr<inbound_state> in, done_handler h) {
  for (auto& l : in->landings) l.at.revoke();  // before any of them is waited for: a wait may be cancelled
  const auto ex = in->windows.get_executor();
  run_as_operation(ex, drain(std::move(in)), std::move(h));
}

}  // namespace detail

result<inbound_stream> inbound_stream::open(window_table windows, stream_side side) {
  auto s = std::make_shared<detail::inbound_state>(detail::inbound_state{std::move(windows), std::move(side), {}});
  try {
    if (auto ec = detail::expose(*s)) return ec;
  } catch (const std::logic_error&) {  // out_of_range, invalid_argument
    return errc::invalid_argument;
  }
  return inbound_stream(std::move(s));
}

std::vector<leg_ticket> inbound_stream::tickets(worker from) const {
  auto out = tickets();
  std::erase_if(out, [&](const auto& t) { return state_->side.way.legs()[t.leg].from.worker != from; });
  return out;
}

std::vector<leg_ticket> inbound_stream::tickets() const {
  std::vector<leg_ticket> out;
  for (const auto& l : state_->landings) out.push_back({state_->side.way.digest(), l.leg, l.parts.tokens, l.at.ref()});
  return out;
}

std::uint64_t inbound_stream::bytes() const noexcept {
  std::uint64_t n = 0;
  for (const auto& l : state_->landings) n += l.parts.bytes;
  return n;
}

std::uint64_t inbound_stream::arrived() const noexcept {
  std::uint64_t n = 0;
  for (const auto& l : state_->landings) n += l.at.bytes_put();
  return n;
}

asio::any_io_executor inbound_stream::get_executor() const { return state_->windows.get_executor(); }

}  // namespace cokv

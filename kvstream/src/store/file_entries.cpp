// How entries come into the files of a log, many writers' at once.
#include <algorithm>

#include "cokv/runtime/detail/operation.hpp"
#include "store/file_store_state.hpp"

namespace cokv {

using detail::as_tuple;
using detail::log_kind;
using detail::log_tail;
using detail::queue_owner;

namespace {

constexpr std::size_t batch_bytes = std::size_t{1} << 20;
constexpr std::size_t batch_removals = batch_bytes / detail::log_removal_bytes;

}  // namespace

void file_store::state::enter(const std::shared_ptr<log_tail>& to, log_tail::entry e) {
  if (detail::operation_registry::of(ex).closing()) return;  // nobody would take it out again
  to->queue.push_back(std::move(e));
  if (to->committing) return;
  to->committing = true;
  book.occupy(to->serial);
  ++background_;
  asio::co_spawn(ex, run_entries(shared_from_this(), queue_owner(to)), asio::detached);
}

// While one batch is on its way the next one gathers.
awaitable<void> file_store::state::run_entries(std::shared_ptr<state> self, queue_owner owner) {
  const auto to = owner.tail;
  while (!to->queue.empty()) {
    std::vector<log_tail::entry> batch;
    std::vector<std::uint64_t> places;
    auto ec = to->broken;
    // Before anything that may be there anew under those names; more than go with a batch come after a quota became less.
    while (!ec && self->given_up.size() > batch_removals) ec = co_await self->write_batch(*to, batch, places);
    for (std::size_t bytes = 0; !to->queue.empty() && (batch.empty() || bytes < batch_bytes);) {
      bytes += to->queue.front().body.size();
      batch.push_back(std::move(to->queue.front()));
      to->queue.pop_front();
    }
    if (!ec) ec = co_await self->write_batch(*to, batch, places);
    places.resize(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i)
      if (batch[i].done) batch[i].done(ec, places[i], batch[i].sequence);
  }
  owner.tail.reset();
  to->committing = false;
  if (to->broken && !to->over) {
    for (bool row : {false, true})
      if (self->tails_[row] == to) self->tails_[row] = nullptr;
    to->over = true;
  }
  self->finish(to);
  self->vacate(to->serial);
}

awaitable<error_code> file_store::state::write_batch(log_tail& to, std::vector<log_tail::entry>& batch,
                                                     std::vector<std::uint64_t>& places) {
  auto synced = [&]() -> awaitable<error_code> {
    auto [wait_ec, admitted] = co_await admit();
    if (wait_ec) co_return wait_ec;
    auto [ec] = co_await to.open->async_sync(as_tuple());
    co_return ec;
  };
  if (std::any_of(batch.begin(), batch.end(), [](const auto& e) { return e.data_first; }))
    if (auto ec = co_await synced()) {
      to.broken = ec;
      book.suspect(to.serial);
      co_return ec;
    }
  const auto first = next_sequence;
  // What was given up stays away once this batch is there. Two files may get the same: it says so twice.
  const std::vector undone(given_up.begin(),
                           given_up.begin() + static_cast<std::ptrdiff_t>(std::min(given_up.size(), batch_removals)));
  for (const auto& u : undone) {
    to.index.add(log_kind::removal, u.sequence, first, encode_log_body(u.removal));
    book.keep_removal(to.serial, u);
  }
  for (auto& e : batch) {
    // One below each is kept free, for a removal that belongs to it.
    if (e.sequence == 0) e.sequence = next_sequence + 1;
    next_sequence = std::max(next_sequence, e.sequence + 1);
    places.push_back(to.index.add(e.kind, e.sequence, first, e.body));
    if (e.kind == log_kind::removal) book.keep_removal(to.serial, {*detail::decode_log_removal(e.body), e.sequence});
  }
  book.resize(to.serial, to.index.end());
  error_code ec;
  for (auto& w : to.index.take_writes()) {
    auto [wait_ec, admitted] = co_await admit();
    if (!ec) ec = wait_ec;
    if (!ec)
      std::tie(ec, std::ignore) =
          co_await to.open->async_write_at(w.at, asio::buffer(w.bytes.data(), w.bytes.size()), as_tuple());
  }
  if (!ec) ec = co_await synced();
  if (!ec) {
    for (const auto& u : undone) book.removal_is_there(u);
    for (const auto& e : batch)
      if (e.kind == log_kind::removal) book.removal_is_there({*detail::decode_log_removal(e.body), e.sequence});
    if (!undone.empty()) std::erase_if(given_up, [&](const auto& u) { return u.sequence <= undone.back().sequence; });
  }
  if (ec) {
    // What is on the disk of this batch nobody knows: nothing may come behind it.
    to.broken = ec;
    book.suspect(to.serial);
  }
  co_return ec;
}

awaitable<error_code> file_store::state::enter_removals(std::span<const detail::log_book::undone> removals) {
  if (removals.empty()) co_return error_code();
  std::shared_ptr<log_tail> to;
  for (const auto& t : tails_)
    if (!to && t && !t->broken) to = t;
  if (!to) {
    detail::reservation room(reserved, chunk_bytes());
    auto [turn_ec, turn] = co_await tail_turn_[0].async_acquire(1, as_tuple());
    if (turn_ec) co_return turn_ec;
    to = tails_[0];
    if (!to || to->broken) {
      if (to) retire(false);
      auto made = co_await make_tail(false, room);
      if (!made) co_return made.error();
      to = std::move(*made);
    }
  }
  auto done = std::make_shared<semaphore>(ex, 0);
  auto outcome = std::make_shared<error_code>();
  for (const auto& r : removals)
    enter(to, {.kind = log_kind::removal,
               .body = encode_log_body(r.removal),
               .data_first = false,
               .sequence = r.sequence,
               .done = [done, outcome](error_code ec, std::uint64_t, std::uint64_t) {
                 if (!*outcome) *outcome = ec;
                 done->release();
               }});
  auto [ec, all] = co_await done->async_acquire(removals.size(), as_tuple());
  co_return ec ? ec : *outcome;
}

}  // namespace cokv

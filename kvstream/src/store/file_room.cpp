// Who gets which room, and where it comes from: one cleaner takes the oldest files, has what was asked for carried over
// (file_carry.cpp), and removes them.
#include <algorithm>

#include "cokv/runtime/detail/operation.hpp"
#include "store/file_store_state.hpp"

namespace cokv {

using detail::as_tuple;
using detail::log_book;
using detail::reservation;

std::uint64_t file_store::state::disk_room() const {
  const auto free = files.free_space(options.directory);
  if (!free) return ~std::uint64_t{0} >> 1;  // not known: the disk will say
  return *free - std::min(*free, *unwritten);
}

std::uint64_t file_store::state::limit() {
  if (disk_limit_ >= options.limit_bytes) return options.limit_bytes;
  if (files.free_space(options.directory)) disk_limit_ = std::max(disk_limit_, book.used() + disk_room());
  return std::min(disk_limit_, options.limit_bytes);
}

void file_store::state::disk_is_full() {
  disk_limit_ = std::min(disk_limit_, book.used() + disk_room());
  // Files of the size that suited the old limit would be all there is.
  for (bool row : {false, true}) retire(row);
}

std::size_t file_store::state::blocks_a_part(const block_layout& layout, const std::string& tenant) {
  const auto block = std::max<std::uint64_t>(detail::log_block_bytes(layout, alignment()), 1);
  const auto fits =
      std::max<std::uint64_t>((segment_bytes() - std::min<std::uint64_t>(chunk_bytes(), segment_bytes())) / block, 1);
  auto n = static_cast<std::size_t>(std::min<std::uint64_t>(fits, detail::max_request_blocks));
  const auto layers = layout.segments.size();
  const auto each = detail::log_record_bytes(layers, 2) - detail::log_record_bytes(layers, 1) + detail::log_entry_head;
  return std::clamp<std::size_t>((detail::log_entry_most - detail::log_record_bytes(layers, 1, tenant.size())) / each,
                                 1, n);
}

std::uint64_t file_store::state::bytes_for(const block_layout& layout, std::size_t blocks, const std::string& tenant) {
  if (blocks == 0) return 0;
  const auto part = blocks_a_part(layout, tenant);
  const auto block = detail::log_block_bytes(layout, alignment());
  const auto of = [&](std::size_t n) -> std::uint64_t {
    const auto entry = detail::log_record_bytes(layout.segments.size(), n, tenant.size());
    // What makes room under a quota is about as much, and each is an entry of its own.
    const auto removals = book.quotas().bounds(tenant) ? detail::log_pages(n * detail::log_removal_bytes) : 0;
    return n == 0 ? 0
                  : detail::log_pages(n * block) + detail::log_index::growth(entry, chunk_bytes()) + chunk_bytes() +
                        removals;
  };
  return blocks / part * of(part) + of(blocks % part);
}

awaitable<std::tuple<error_code, reservation>> file_store::state::make_room(std::uint64_t bytes) {
  if (used() + bytes > budget() + book.evictable()) co_return std::tuple(error_code(errc::store_full), reservation());
  if (requests_.empty() && used() + bytes <= budget()) co_return std::tuple(error_code(), reservation(reserved, bytes));
  auto mine = std::make_shared<request>();
  mine->bytes = bytes;
  mine->answered = std::make_shared<semaphore>(ex, 0);
  requests_.push_back(mine);
  clean_later();
  auto [ec, all] = co_await mine->answered->async_acquire(1, as_tuple());
  mine->wanted = false;
  co_return std::tuple(ec ? ec : mine->failed, std::move(mine->room));
}

bool file_store::state::nothing_to_clean() const {
  return requests_.empty() && book.unwanted().empty() && !book.suspected() && !book.emptied();
}

void file_store::state::clean_later() {
  if (cleaning_ || nothing_to_clean()) return;
  // While the context goes down nothing more is begun; what is left is found when the folder is opened again.
  if (detail::operation_registry::of(ex).closing()) return;
  cleaning_ = true;
  asio::co_spawn(ex, run_cleaner(shared_from_this()), asio::detached);
}

void file_store::state::serve_requests() {
  while (!requests_.empty()) {
    auto& next = *requests_.front();
    if (next.wanted && used() + next.bytes > budget()) return;
    if (next.wanted) next.room = reservation(reserved, next.bytes);
    next.answered->release();
    requests_.pop_front();
  }
}

awaitable<void> file_store::state::run_cleaner(std::shared_ptr<state> self) {
  auto& book = self->book;
  for (;;) {
    const auto unwanted = book.unwanted();
    for (auto serial : unwanted)
      if (book.has(serial) && !book.held(serial) && book.live(serial) == 0) {
        self->retire_file(serial);
        co_await self->remove_file(serial, false);
      }
    self->serve_requests();
    const auto emptied = book.emptied();
    if (self->requests_.empty() && !book.suspected() && !emptied) break;
    if (co_await self->clean_one(emptied)) continue;
    if (book.occupied()) {
      auto over = std::make_shared<semaphore>(self->ex, 0);
      self->when_vacated_.push_back(over);
      co_await over->async_acquire(1, as_tuple());
      continue;
    }
    self->serve_requests();
    if (!self->requests_.empty()) {
      self->requests_.front()->failed = errc::store_full;
      self->requests_.front()->answered->release();
      self->requests_.pop_front();
    } else {
      break;
    }
  }
  co_await self->sync_names();
  self->cleaning_ = false;
  if (!self->nothing_to_clean() && (!self->requests_.empty() || !book.unwanted().empty())) self->clean_later();
  if (self->cleaning_) co_return;
  for (auto& waiting : std::exchange(self->when_clean_, {})) waiting->release();
}

// This one, or the one whose turn it is. False when there is nothing that could go.
awaitable<bool> file_store::state::clean_one(std::optional<std::uint64_t> victim) {
  const auto serial = victim ? victim : book.victim(limit() / 10);
  if (!serial) co_return false;
  retire_file(*serial);
  book.occupy(*serial);
  const auto free = limit() - std::min(limit(), used());
  // A new file, and an entry for each group, come with what is carried.
  const auto fixed = std::uint64_t{2} * chunk_bytes() + detail::log_page;
  auto pass = book.plan(*serial, free - std::min(free, 2 * fixed));
  if (!pass.carry.empty()) {
    reservation room(reserved, free);
    co_await carry(std::move(pass), room);
  }
  const auto ec = co_await enter_removals(book.needed_removals(*serial));
  book.vacate(*serial);
  if (book.held(*serial)) co_return true;  // somebody came to read it: there are others
  if (ec) co_return false;
  co_await remove_file(*serial, true);
  co_return true;
}

awaitable<error_code> file_store::state::remove_file(std::uint64_t serial, bool evicted) {
  const auto gone = book.drop_file(serial, evicted);
  if (evicted) counters.evicted_blocks += gone;
  book.occupy(serial);
  forget_handle(serial);
  co_await files.async_remove(path_of(serial), as_tuple());
  book.vacate(serial);
  book.unlinked(serial);
  co_return co_await sync_names();
}

awaitable<error_code> file_store::state::settle(std::shared_ptr<state> self) {
  // Whoever has all permits knows that nobody else has one.
  auto [ec, all] =
      co_await self->deferred.async_acquire(std::max<std::size_t>(self->options.max_deferred, 1), as_tuple());
  if (!ec) ec = co_await self->enter_given_up();
  while (!ec && (self->cleaning_ || self->background_ > 0)) {
    auto over = std::make_shared<semaphore>(self->ex, 0);
    (self->cleaning_ ? self->when_clean_ : self->when_vacated_).push_back(over);
    std::tie(ec, std::ignore) = co_await over->async_acquire(1, as_tuple());
  }
  co_return ec;
}

}  // namespace cokv

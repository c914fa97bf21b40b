// The files of a log: how they are opened, and how extents come to be in those that are written.
#include <algorithm>

#include "cokv/runtime/detail/operation.hpp"
#include "store/file_store_state.hpp"

namespace cokv {

using detail::as_tuple;
using detail::log_tail;

std::shared_ptr<const detail::log_group> detail::make_log_group(const log_record& r, std::uint64_t serial,
                                                                std::uint64_t entry_at, std::size_t body_bytes,
                                                                std::uint64_t sequence) {
  auto g = std::make_shared<log_group>();
  g->serial = serial;
  g->entry_at = entry_at;
  g->entry_bytes = static_cast<std::uint32_t>(log_entry_head + body_bytes);
  g->sequence = sequence;
  g->ns = r.ns;
  g->extent = r.extent;
  g->digest = r.digest;
  g->tenant = r.tenant;
  g->blocks = r.blocks;
  return g;
}

awaitable<std::tuple<error_code, permit>> file_store::state::admit() {
  if (auto free = operations.try_acquire()) co_return std::tuple(error_code(), std::move(*free));
  co_return co_await operations.async_acquire(1, as_tuple());
}

awaitable<std::tuple<error_code, file>> file_store::state::open_file(std::string path, open_mode mode) {
  if (direct) {
    auto [ec, f] = co_await files.async_open_direct(path, mode, as_tuple());
    if (!ec && f.alignment().offset <= detail::log_page) co_return std::tuple(ec, std::move(f));
    if (ec && ec != boost::system::errc::invalid_argument) co_return std::tuple(ec, file());
    direct = false;
    if (mode == open_mode::create_new) mode = open_mode::create;  // it was made all the same
  }
  co_return co_await files.async_open(std::move(path), mode, as_tuple());
}

awaitable<std::tuple<error_code, std::shared_ptr<file>>> file_store::state::open_log(std::uint64_t serial) {
  for (const auto& t : tails_)
    if (t && t->serial == serial) co_return std::tuple(error_code(), t->open);
  if (auto h = handles_.find(serial); h != handles_.end()) {
    h->second.used = ++handle_uses_;
    co_return std::tuple(error_code(), h->second.open);
  }
  auto [ec, f] = co_await open_file(path_of(serial), open_mode::read);
  if (ec) co_return std::tuple(ec, std::shared_ptr<file>());
  auto shared = std::make_shared<file>(std::move(f));
  if (options.max_open_files == 0) co_return std::tuple(error_code(), std::move(shared));
  while (handles_.size() >= options.max_open_files)
    handles_.erase(std::min_element(handles_.begin(), handles_.end(),
                                    [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  handles_[serial] = {shared, ++handle_uses_};
  co_return std::tuple(error_code(), std::move(shared));
}

std::uint64_t file_store::state::segment_bytes() {
  constexpr std::uint64_t largest = std::uint64_t{256} << 20;
  const auto most = limit();
  const auto wanted =
      options.segment_bytes != 0 ? options.segment_bytes : std::min(detail::log_pages(most / 128), largest);
  return disk_was_full() ? std::min(wanted, detail::log_pages(most / 16)) : wanted;
}

std::uint32_t file_store::state::chunk_bytes() {
  const auto share = segment_bytes() / 256 / detail::log_page * detail::log_page;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(share, detail::log_page, std::uint64_t{64} << 10));
}

awaitable<result<std::shared_ptr<log_tail>>> file_store::state::make_tail(bool carried, detail::reservation& room) {
  auto t = std::make_shared<log_tail>(next_serial++, carried, chunk_bytes());
  const auto path = path_of(t->serial);
  auto [ec, f] = co_await open_file(path, open_mode::create_new);
  if (ec) co_return ec;
  error_code failed;
  for (auto& w : t->index.take_writes())
    std::tie(failed, std::ignore) =
        co_await f.async_write_at(w.at, asio::buffer(w.bytes.data(), w.bytes.size()), as_tuple());
  // Its name is there before anything that it holds is said to be.
  if (!failed) std::tie(failed) = co_await files.async_sync_directory(log_directory(), as_tuple());
  if (failed) {
    f.close();
    co_await files.async_remove(path, as_tuple());
    co_return failed;
  }
  t->open = std::make_shared<file>(std::move(f));
  book.add_file(t->serial, carried, t->index.end());
  room.give_back(t->index.end());
  tails_[carried] = t;
  co_return t;
}

void file_store::state::finish(const std::shared_ptr<log_tail>& t) {
  if (!t->over || t->sealed || t->writers > 0 || t->committing || !book.has(t->serial)) return;
  t->sealed = true;
  book.seal(t->serial);
  const bool worth_it = !t->broken && book.live(t->serial) > 0 && !detail::operation_registry::of(ex).closing();
  if (worth_it) ++background_;
  if (worth_it) asio::co_spawn(ex, write_seal(shared_from_this(), t), asio::detached);
  clean_later();
}

// Without it the last batch is looked at again when the folder is opened: nothing waits for it.
awaitable<void> file_store::state::write_seal(std::shared_ptr<state> self, std::shared_ptr<log_tail> t) {
  self->book.occupy(t->serial);
  t->index.seal();
  for (auto& w : t->index.take_writes()) {
    auto [wait_ec, admitted] = co_await self->admit();
    if (!wait_ec) co_await t->open->async_write_at(w.at, asio::buffer(w.bytes.data(), w.bytes.size()), as_tuple());
  }
  self->vacate(t->serial);
}

void file_store::state::vacate(std::uint64_t serial) {
  book.vacate(serial);
  one_less_behind();
}

void file_store::state::one_less_behind() {
  --background_;
  for (auto& waiting : std::exchange(when_vacated_, {})) waiting->release();
  clean_later();
}

void file_store::state::retire(bool carried) {
  auto t = std::exchange(tails_[carried], nullptr);
  if (!t) return;
  t->over = true;
  finish(t);
}

awaitable<std::tuple<error_code, file_store::state::extent>> file_store::state::open_extent(bool carried,
                                                                                            std::uint64_t bytes,
                                                                                            detail::reservation& room) {
  auto [ec, turn] = co_await tail_turn_[carried].async_acquire(1, as_tuple());
  if (ec) co_return std::tuple(ec, extent());
  auto t = tails_[carried];
  if (t && (t->over || (t->index.end() > t->index.first_bytes() && t->index.end() + bytes > segment_bytes()))) {
    retire(carried);
    t = nullptr;
  }
  if (!t) {
    auto made = co_await make_tail(carried, room);
    if (!made) co_return std::tuple(made.error(), extent());
    t = std::move(*made);
  }
  extent e{t, t->index.allocate(bytes)};
  room.give_back(detail::log_pages(bytes));
  book.resize(t->serial, t->index.end());
  book.hold(t->serial);
  ++t->writers;
  co_return std::tuple(error_code(), std::move(e));
}

void file_store::state::close_extent(const extent& e, std::uint64_t unused_bytes) {
  --e.in->writers;
  book.release(e.in->serial);
  if (unused_bytes != 0 && !e.in->broken && e.in->index.take_back(e.at, unused_bytes) && book.has(e.in->serial))
    book.resize(e.in->serial, e.in->index.end());
  finish(e.in);
  clean_later();
}

awaitable<error_code> file_store::state::sync_names() {
  const auto before = book.unlinked_serials();
  if (before.empty()) co_return error_code();
  auto [ec] = co_await files.async_sync_directory(log_directory(), as_tuple());
  if (!ec) book.forget_unlinked(before);
  co_return ec;
}

}  // namespace cokv

#include "cokv/kvstream/file_store.hpp"

#include <algorithm>

#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/file_store_state.hpp"

namespace cokv {

using detail::as_tuple;
using detail::file_entry;
using detail::stored_id;

file_store::state::state(asio::any_io_executor e, file_store_options o)
    : ex(std::move(e)),
      options(std::move(o)),
      files(file_system::of(ex)),
      operations(ex, std::max<std::size_t>(options.max_operations, 1)),
      open_files(ex, options.max_open_files),
      deferred(ex, std::max<std::size_t>(options.max_deferred, 1)),
      staging(std::max<std::size_t>(options.max_operations, 1)),
      direct(options.direct) {}

awaitable<std::tuple<error_code, permit>> file_store::state::admit() {
  if (auto free = operations.try_acquire()) co_return std::tuple(error_code(), std::move(*free));
  co_return co_await operations.async_acquire(1, as_tuple());
}

awaitable<std::tuple<error_code, file>> file_store::state::open_block(std::string path, open_mode mode) {
  if (direct) {
    auto [ec, f] = co_await files.async_open_direct(path, mode, as_tuple());
    if (!ec && f.alignment().offset <= detail::block_file_page) co_return std::tuple(ec, std::move(f));
    if (ec && ec != boost::system::errc::invalid_argument) co_return std::tuple(ec, file());
    direct = false;
  }
  co_return co_await files.async_open(std::move(path), mode, as_tuple());
}

std::shared_ptr<file_entry> file_store::state::find(const stored_id& id) const {
  auto e = index.find(id);
  return e == index.end() ? nullptr : e->second;
}

std::shared_ptr<const block_layout> file_store::state::share(const namespace_id& ns, const block_layout& layout) {
  if (layouts.size() >= 4096) layouts.clear();  // it only saves memory
  auto& shared = layouts[ns];
  if (!shared || *shared != layout) shared = std::make_shared<const block_layout>(layout);
  return shared;
}

void file_store::state::insert(std::shared_ptr<file_entry> e) {
  order.insert(e->id, e->room.bytes());
  index.emplace(e->id, std::move(e));
}

void file_store::state::drop(const std::shared_ptr<file_entry>& e, std::shared_ptr<semaphore> removed) {
  if (find(e->id) == e) {
    order.erase(e->id);
    index.erase(e->id);
  }
  e->room.release();
  remove_later(e->path, std::move(removed));
}

void file_store::state::remove_later(std::string path, std::shared_ptr<semaphore> removed) {
  // While the context goes down nothing more is begun; what is left is found when the folder is opened again.
  if (detail::operation_registry::of(ex).closing()) return;
  removals_.push_back({std::move(path), std::move(removed)});
  if (removers_ >= 4) return;
  ++removers_;
  asio::co_spawn(ex, remove_all(shared_from_this()), asio::detached);
}

awaitable<void> file_store::state::remove_all(std::shared_ptr<state> self) {
  while (!self->removals_.empty()) {
    auto next = std::move(self->removals_.front());
    self->removals_.pop_front();
    co_await self->files.async_remove(next.path, as_tuple());
    if (next.removed) next.removed->release();
  }
  if (--self->removers_ > 0) co_return;
  for (auto& waiting : std::exchange(self->when_removed_, {})) waiting->release();
}

awaitable<error_code> file_store::state::settle(std::shared_ptr<state> self) {
  // Whoever has all permits knows that nobody else has one.
  auto [ec, all] =
      co_await self->deferred.async_acquire(std::max<std::size_t>(self->options.max_deferred, 1), as_tuple());
  while (!ec && self->removers_ > 0) {
    auto over = std::make_shared<semaphore>(self->ex, 0);
    self->when_removed_.push_back(over);
    std::tie(ec, std::ignore) = co_await over->async_acquire(1, as_tuple());
  }
  co_return ec;
}

std::uint64_t file_store::state::limit() {
  if (disk_limit_ >= options.limit_bytes) return options.limit_bytes;
  if (auto free = files.free_space(options.directory)) disk_limit_ = std::max(disk_limit_, *used + *free);
  return std::min(disk_limit_, options.limit_bytes);
}

awaitable<std::tuple<error_code, detail::reservation>> file_store::state::make_room(std::uint64_t bytes) {
  const auto most = limit();
  if (*used + bytes > most + order.evictable())
    co_return std::tuple(error_code(errc::store_full), detail::reservation());
  detail::reservation room(used, bytes);
  auto removed = std::make_shared<semaphore>(ex, 0);
  std::size_t n = 0;
  while (*used > most) {
    auto id = order.evict();
    if (!id) co_return std::tuple(error_code(errc::store_full), detail::reservation());
    drop(find(*id), removed);
    ++counters.evicted_blocks;
    ++n;
  }
  if (n > 0) co_await removed->async_acquire(n, as_tuple());
  co_return std::tuple(error_code(), std::move(room));
}

file_store::file_store(std::shared_ptr<state> s) : store(s->ex), state_(std::move(s)) {}
file_store::~file_store() = default;

void file_store::check(const file_store_options& options) {
  if (options.directory.empty()) throw config_error("file store: no directory");
  if (options.limit_bytes == 0) throw config_error("file store: limit is 0 bytes");
  if (options.digest == digest_algorithm::xxh3_64_tree)
    throw config_error("file store: its digests are XXH3-64 or none");
}

void file_store::open(asio::any_io_executor ex, file_store_options options, open_handler handler) {
  auto body = [](asio::any_io_executor e,
                 file_store_options o) -> awaitable<std::tuple<error_code, std::unique_ptr<file_store>>> {
    auto s = std::make_shared<state>(e, std::move(o));
    if (auto ec = co_await s->recover()) co_return std::tuple(ec, std::unique_ptr<file_store>());
    co_return std::tuple(error_code(), std::unique_ptr<file_store>(new file_store(std::move(s))));
  };
  detail::run_as_operation(ex, body(ex, std::move(options)), std::move(handler));
}

store_info file_store::info() const {
  auto out = state_->counters;
  out.kind = "file";
  out.direct = state_->direct;
  out.limit_bytes = state_->options.limit_bytes;
  out.used_bytes = *state_->used;
  out.blocks = state_->index.size();
  return out;
}

void file_store::do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) {
  std::size_t n = 0;
  while (n < keys.size() && state_->find({ns, keys[n]})) ++n;
  for (std::size_t i = 0; options.refresh && i < n; ++i) state_->order.touch({ns, keys[i]});
  detail::finish(std::move(handler), get_executor(), {}, n);
}

void file_store::do_layout(namespace_id ns, block_key key, layout_handler handler) {
  const auto found = state_->find({ns, key});
  detail::finish(std::move(handler), get_executor(), found ? error_code() : make_error_code(errc::not_found),
                 found ? *found->layout : block_layout());
}

void file_store::do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                               writer_handler handler) {
  detail::run_as_operation(get_executor(),
                           detail::open_file_writer(state_, ns, std::move(layout), std::move(keys), options),
                           std::move(handler));
}

void file_store::do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                              reader_handler handler) {
  detail::run_as_operation(get_executor(), detail::open_file_reader(state_, ns, std::move(layout), std::move(keys)),
                           std::move(handler));
}

void file_store::do_settle(done_handler handler) {
  detail::run_as_operation(get_executor(), state::settle(state_), std::move(handler));
}

void file_store::do_remove(namespace_id ns, block_key key, done_handler handler) {
  auto body = [](std::shared_ptr<state> s, stored_id id) -> awaitable<error_code> {
    auto e = s->find(id);
    if (!e) co_return errc::not_found;
    auto removed = std::make_shared<semaphore>(s->ex, 0);
    s->drop(e, removed);
    auto [ec, gone] = co_await removed->async_acquire(1, as_tuple());
    co_return ec;
  };
  detail::run_as_operation(get_executor(), body(state_, {ns, key}), std::move(handler));
}

error_code detail::as_store_error(error_code ec) {
  namespace sys = boost::system::errc;
  if (ec == sys::no_space_on_device || ec == sys::file_too_large || ec.value() == EDQUOT) return errc::store_full;
  return ec;
}

}  // namespace cokv

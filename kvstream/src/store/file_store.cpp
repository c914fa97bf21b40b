#include "cokv/kvstream/file_store.hpp"

#include <algorithm>

#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/file_store_state.hpp"

namespace cokv {

using detail::as_tuple;
using detail::stored_id;

file_store::state::state(asio::any_io_executor e, file_store_options o)
    : ex(std::move(e)),
      options(std::move(o)),
      files(file_system::of(ex)),
      operations(ex, std::max<std::size_t>(options.max_operations, 1)),
      deferred(ex, std::max<std::size_t>(options.max_deferred, 1)),
      staging(std::max<std::size_t>(options.max_operations, 1)),
      direct(options.direct),
      book(options.limit_bytes / 8, options.quotas),
      tail_turn_{semaphore(ex, 1), semaphore(ex, 1)} {}

std::shared_ptr<const block_layout> file_store::state::share(const namespace_id& ns,
                                                             std::shared_ptr<const block_layout> layout) {
  if (layouts.size() >= 4096) layouts.clear();  // it only saves memory
  auto& shared = layouts[ns];
  if (!shared || *shared != *layout) shared = std::move(layout);
  return shared;
}

void file_store::state::lose(std::uint64_t serial) {
  if (!book.has(serial)) return;
  retire_file(serial);
  forget_handle(serial);
  book.drop_file(serial, false);
  clean_later();
}

void file_store::state::lose(const std::shared_ptr<const detail::log_group>& g) {
  for (const auto& m : g->blocks)
    if (const auto* b = book.find({g->ns, m.key}); b && b->group == g) book.erase({g->ns, m.key});
  clean_later();
}

awaitable<error_code> file_store::state::claim(std::vector<detail::stored_id> ids) {
  auto taken = [&] {
    return std::any_of(ids.begin(), ids.end(), [&](const auto& id) { return claimed_.contains(id); });
  };
  while (taken()) {
    auto over = std::make_shared<semaphore>(ex, 0);
    when_unclaimed_.push_back(over);
    auto [ec, done] = co_await over->async_acquire(1, as_tuple());
    if (ec) co_return ec;
  }
  for (const auto& id : ids) claimed_[id] = book.quotas().pin(id);
  co_return error_code();
}

void file_store::state::unclaim(std::span<const detail::stored_id> ids) {
  for (const auto& id : ids)
    if (const auto c = claimed_.find(id); c != claimed_.end()) {
      book.quotas().unpin(id, c->second);
      claimed_.erase(c);
    }
  for (auto& waiting : std::exchange(when_unclaimed_, {})) waiting->release();
}

// The removal is entered before the block goes: what could not be entered is still there.
awaitable<error_code> file_store::state::remove(stored_id id) {
  std::vector ids{id};
  if (auto ec = co_await claim(ids)) co_return ec;
  if (!book.find(id)) {
    unclaim(ids);
    co_return errc::not_found;
  }
  auto done = std::make_shared<semaphore>(ex, 0);
  auto outcome = std::make_shared<error_code>();
  auto body = [](std::shared_ptr<state> self, std::vector<stored_id> named, std::shared_ptr<semaphore> over,
                 std::shared_ptr<error_code> result) -> awaitable<void> {
    const detail::log_book::undone removal{{named[0], self->next_serial - 1}, 0};
    *result = co_await self->enter_removals(std::span(&removal, 1));
    if (!*result) self->book.erase(named[0]);
    self->unclaim(named);
    self->clean_later();
    // Nor may a file come back that held it, and that is gone already.
    if (!*result) *result = co_await self->sync_names();
    over->release();
  };
  if (detail::operation_registry::of(ex).closing()) co_return asio::error::operation_aborted;
  // Whatever becomes of who asked: a name is not left claimed.
  asio::co_spawn(ex, body(shared_from_this(), ids, done, outcome), asio::detached);
  auto [ec, all] = co_await done->async_acquire(1, detail::as_tuple());
  co_return ec ? ec : *outcome;
}

file_store::file_store(std::shared_ptr<state> s) : store(s->ex), state_(std::move(s)) {}
file_store::~file_store() { state_->book.tell({}); }

std::uint64_t file_store::bytes_of(const block_layout& layout, bool direct) {
  return detail::log_block_bytes(layout, state::alignment(direct));
}

void file_store::set_quotas(const tenant_quotas& quotas) { state_->set_quotas(quotas); }

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
    s->book.tell(s->options.on_change);
    co_return std::tuple(error_code(), std::unique_ptr<file_store>(new file_store(std::move(s))));
  };
  detail::run_as_operation(ex, body(ex, std::move(options)), std::move(handler));
}

store_info file_store::info() const {
  auto out = state_->counters;
  out.kind = "file";
  out.direct = state_->direct;
  out.limit_bytes = state_->options.limit_bytes;
  out.used_bytes = state_->book.live() + *state_->writing;
  out.file_bytes = state_->used();
  out.blocks = state_->book.blocks();
  out.tenants = state_->book.tenants();
  return out;
}

void file_store::do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) {
  std::size_t n = 0;
  while (n < keys.size() && state_->book.find({ns, keys[n]})) ++n;
  for (std::size_t i = 0; options.refresh && i < n; ++i) state_->book.touch({ns, keys[i]});
  detail::finish(std::move(handler), get_executor(), {}, n);
}

void file_store::do_layout(namespace_id ns, block_key key, layout_handler handler) {
  const auto* found = state_->book.find({ns, key});
  detail::finish(std::move(handler), get_executor(), found ? error_code() : make_error_code(errc::not_found),
                 found ? *found->group->extent.layout : block_layout());
}

void file_store::do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                               writer_handler handler) {
  detail::run_as_operation(get_executor(),
                           detail::open_file_writer(state_, ns, std::move(layout), std::move(keys), std::move(options)),
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
  auto body = [](std::shared_ptr<state> s, stored_id id) -> awaitable<error_code> { co_return co_await s->remove(id); };
  detail::run_as_operation(get_executor(), body(state_, {ns, key}), std::move(handler));
}

error_code detail::as_store_error(error_code ec) {
  namespace sys = boost::system::errc;
  if (ec == sys::no_space_on_device || ec == sys::file_too_large || ec.value() == EDQUOT) return errc::store_full;
  return ec;
}

}  // namespace cokv

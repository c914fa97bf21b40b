#include "cokv/kvstream/staged_store.hpp"

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/staged.hpp"

namespace cokv {

namespace detail {

store_staging_state::store_staging_state(device of, staging_options how, staging_pool pool, stream in, stream out)
    : device_(std::move(of)),
      how_(how),
      pool_(std::move(pool)),
      saving_(device_.get_executor(), std::max<std::size_t>(how.buffers - 1, 1)),
      in_(std::move(in)),
      out_(std::move(out)) {}

// Every buffer has one batch of copies at most on its way: no more operations than that, and those whose end is just
// being told.
result<stream> store_staging_state::make_stream(device& of, const staging_options& how, const char* name) {
  return of.make_stream({.name = name, .max_in_flight = 2 * how.buffers + 2});
}

result<stream> store_staging_state::usable(stream& s, const char* name, bool failed) {
  if (lost_) return lost_;
  if (!failed && !s.status()) return s;
  auto another = make_stream(device_, how_, name);
  if (another) return s = *another;
  if (another.error() == errc::device_lost) {
    lost_ = another.error();
    pool_.reset();
  }
  return another.error();
}

std::optional<saving_buffer> store_staging_state::try_acquire_saving() {
  auto turn = saving_.try_acquire();
  if (!turn) return std::nullopt;
  auto memory = try_acquire();
  if (!memory) return std::nullopt;
  return saving_buffer{std::move(*turn), std::move(*memory)};
}

awaitable<result<buffer>> store_staging_state::acquire(std::shared_ptr<store_staging_state> self) {
  if (self->lost_) co_return self->lost_;
  auto memory = co_await self->pool_->async_acquire(as_result);
  if (!memory && self->lost_) co_return self->lost_;
  co_return memory;
}

awaitable<result<saving_buffer>> store_staging_state::acquire_saving(std::shared_ptr<store_staging_state> self) {
  auto turn = co_await self->saving_.async_acquire(1, as_result);
  if (!turn) co_return turn.error();
  if (co_await was_cancelled()) co_return error_code(asio::error::operation_aborted);
  auto memory = co_await acquire(self);
  if (!memory) co_return memory.error();
  co_return saving_buffer{std::move(*turn), std::move(*memory)};
}

}  // namespace detail

result<store_staging> store_staging::make(device of, staging_options options) {
  auto pool = staging_pool::make(of, options.buffer_bytes, options.buffers);
  if (!pool) return pool.error();
  auto in = detail::store_staging_state::make_stream(of, options, "KV in");
  if (!in) return in.error();
  auto out = detail::store_staging_state::make_stream(of, options, "KV out");
  if (!out) return out.error();
  return store_staging(std::make_shared<detail::store_staging_state>(std::move(of), options, std::move(*pool),
                                                                     std::move(*in), std::move(*out)));
}

std::size_t store_staging::buffer_bytes() const noexcept { return state_->options().buffer_bytes; }
std::size_t store_staging::buffers() const noexcept { return state_->options().buffers; }
std::size_t store_staging::available() const noexcept { return state_->available(); }
error_code store_staging::status() const noexcept { return state_->lost(); }

staged_store::staged_store(std::shared_ptr<store> behind, store_staging through)
    : store(behind ? behind->get_executor() : throw config_error("staged store: there is no store behind it")),
      behind_(std::move(behind)),
      through_(std::move(through)) {}

void staged_store::do_match(namespace_id ns, std::vector<block_key> keys, match_options options,
                            count_handler handler) {
  behind_->async_match(ns, std::move(keys), options, std::move(handler));
}

void staged_store::do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                 write_options options, writer_handler handler) {
  detail::run_as_operation(
      get_executor(),
      detail::open_staged_writer(behind_, through_.state(), ns, std::move(layout), std::move(keys), std::move(options)),
      std::move(handler));
}

void staged_store::do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                reader_handler handler) {
  detail::run_as_operation(
      get_executor(), detail::open_staged_reader(behind_, through_.state(), ns, std::move(layout), std::move(keys)),
      std::move(handler));
}

void staged_store::do_remove(namespace_id ns, block_key key, done_handler handler) {
  behind_->async_remove(ns, key, std::move(handler));
}

void staged_store::do_layout(namespace_id ns, block_key key, layout_handler handler) {
  behind_->async_layout(ns, key, std::move(handler));
}

void staged_store::do_settle(done_handler handler) { behind_->async_settle(std::move(handler)); }

}  // namespace cokv

#include "cokv/kvstream/transfer.hpp"

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::detail {
namespace {

// Tells the handler of a transfer how much was moved.
struct with_bytes {
  transfer_handler handler;
  std::uint64_t bytes = 0;
  void operator()(error_code ec) { std::move(handler)(ec, ec ? transferred() : transferred{bytes, 0}); }
};

}  // namespace
}  // namespace cokv::detail

template <template <class, class> class Associator, class Default>
struct boost::asio::associator<Associator, cokv::detail::with_bytes, Default>
    : Associator<cokv::detail::transfer_handler, Default> {
  static auto get(const cokv::detail::with_bytes& h) noexcept {
    return Associator<cokv::detail::transfer_handler, Default>::get(h.handler);
  }
  static auto get(const cokv::detail::with_bytes& h, const Default& fallback) noexcept {
    return Associator<cokv::detail::transfer_handler, Default>::get(h.handler, fallback);
  }
};

namespace cokv {

error_code sink::check(std::uint64_t offset, std::uint64_t bytes, completion_level level) const {
  if (offset > size() || bytes > size() - offset) return errc::out_of_range;
  if (level > reach()) return errc::unsupported;
  return {};
}

error_code source::check(std::uint64_t offset, std::uint64_t bytes) const {
  return offset > size() || bytes > size() - offset ? make_error_code(errc::out_of_range) : error_code();
}

void sink::commit(std::shared_ptr<detail::sink_backend> b, asio::any_completion_handler<void(error_code)> h) {
  auto ex = b->get_executor();
  auto body = [](std::shared_ptr<detail::sink_backend> to) -> awaitable<error_code> {
    co_return co_await to->commit();
  };
  detail::run_as_operation(ex, body(std::move(b)), std::move(h));
}

namespace detail {

awaitable<error_code> drained(event done) {
  constexpr auto may_drain = asio::cancellation_type::total | asio::cancellation_type::partial;
  for (;;) {
    const auto asked = (co_await asio::this_coro::cancellation_state).cancelled();
    if (done.ready()) co_return done.status();
    if (asked != asio::cancellation_type::none) {
      if ((asked & may_drain) == asio::cancellation_type::none) co_return asio::error::operation_aborted;
      co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
    }
    (void)co_await done.async_wait(asio::as_tuple(asio::deferred));
  }
}

void start_transfer(const asio::any_io_executor& ex, awaitable<result<transferred>> body, transfer_handler h) {
  run_as_operation(ex, std::move(body), std::move(h));
}

awaitable<result<transferred>> flush(buffer chunk, sink to, std::uint64_t offset, event begin, completion_level level) {
  const auto bytes = chunk.size();
  if (auto ec = to.check(offset, bytes, level)) co_return ec;
  if (auto ec = co_await to.backend()->put(offset, {std::move(chunk)}, std::move(begin), level)) co_return ec;
  co_return transferred{bytes, 0};
}

awaitable<result<transferred>> fetch(source from, std::uint64_t offset, buffer chunk, event begin) {
  const auto bytes = chunk.size();
  if (auto ec = from.check(offset, bytes)) co_return ec;
  if (auto ec = co_await from.backend()->get(offset, {std::move(chunk)}, std::move(begin))) co_return ec;
  co_return transferred{bytes, 0};
}

bool flushes_at_once(const buffer& chunk, const sink& to, std::uint64_t offset, const event& begin,
                     completion_level level) {
  return begin.ready() && !begin.status() && level >= completion_level::visible &&
         !to.check(offset, chunk.size(), level) && to.backend()->puts_at_once(chunk);
}

void start_flush(buffer chunk, sink to, std::uint64_t offset, event begin, completion_level level, transfer_handler h) {
  if (!flushes_at_once(chunk, to, offset, begin, level)) {
    const auto ex = to.get_executor();
    return start_transfer(ex, flush(std::move(chunk), std::move(to), offset, std::move(begin), level), std::move(h));
  }
  const auto bytes = chunk.size();
  const prepared_executor ex(to.get_executor());
  initiate<void(error_code), begun_transfer>(with_bytes{std::move(h), bytes}, ex, [&](transfer_operation& op) {
    to.backend()->begin_put(offset, std::move(chunk), op);
  });
}

void start_fetch(source from, std::uint64_t offset, buffer chunk, event begin, transfer_handler h) {
  const auto bytes = chunk.size();
  if (!begin.ready() || begin.status() || from.check(offset, bytes) || !from.backend()->gets_at_once(chunk)) {
    const auto ex = from.get_executor();
    return start_transfer(ex, fetch(std::move(from), offset, std::move(chunk), std::move(begin)), std::move(h));
  }
  const prepared_executor ex(from.get_executor());
  initiate<void(error_code), begun_transfer>(with_bytes{std::move(h), bytes}, ex, [&](transfer_operation& op) {
    from.backend()->begin_get(offset, std::move(chunk), op);
  });
}

}  // namespace detail
}  // namespace cokv

#include "link/nccl/nccl_pair.hpp"

#include <algorithm>

#include "cokv/runtime/compute.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/nccl/nccl_session.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint64_t most_places = 256;  // a direction's, of which each is two operations of its stream

bool on_device(const buffer& b) { return b.kind() == memory_kind::device || b.kind() == memory_kind::exportable; }

awaitable<error_code> transfer(std::shared_ptr<nccl_session> s, nccl_lane* lane, std::vector<buffer> pieces,
                               event begin, nccl_pair::announce begun) {
  std::erase_if(pieces, [](const buffer& b) { return b.empty(); });
  if (!std::ranges::all_of(pieces, on_device)) co_return errc::wrong_device;
  // On the host: an event that fails, or is long in coming, concerns nobody else.
  if (!begin.ready())
    if (auto computed = co_await begin.async_wait(as_result); !computed) co_return computed.error();
  if (auto ec = begin.status()) co_return ec;
  for (;;) {
    if (auto ec = s->status()) co_return ec;
    if (pieces.empty()) co_return error_code();
    if (lane->open_places() < most_places) break;
    (void)co_await lane->next_done().async_wait(asio::as_tuple(asio::deferred));
    if ((co_await asio::this_coro::cancellation_state).cancelled() != asio::cancellation_type::none)
      co_return asio::error::operation_aborted;
  }
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto place = s->begin(*lane, std::move(pieces));
  if (begun) begun(place - 1);  // the first one was the greeting
  co_return co_await drained(lane->at(place));
}

awaitable<error_code> closed(std::shared_ptr<nccl_session> s) {
  s->close();
  auto over = co_await s->closed().async_wait(as_result);
  co_return over ? error_code() : over.error();
}

}  // namespace

awaitable<result<nccl_id>> make_nccl_id(nccl_api api, device on_this) {
  use_texts_of(api);
  co_return co_await on(on_this, [api]() -> result<nccl_id> {
    nccl_id id{};
    for (auto& one : id)
      if (auto ec = nccl_error(api.GetUniqueId(&one))) return ec;
    return id;
  });
}

awaitable<result<nccl_pair>> nccl_pair::connect(nccl_api api, device on, nccl_id id, int rank,
                                                nccl_pair_options options) {
  if (rank != 0 && rank != 1) co_return errc::invalid_argument;
  use_texts_of(api);
  auto session = std::make_shared<nccl_session>(api, std::move(on), id, rank,
                                                nccl_session::limits{options.set_up, options.stall});
  if (auto ec = session->start()) co_return ec;
  nccl_pair made(session);  // abandoned, it is aborted
  if (auto there = co_await session->connected().async_wait(as_result); !there) co_return there.error();
  co_return result<nccl_pair>(boost::system::in_place_value, std::move(made));
}

nccl_pair& nccl_pair::operator=(nccl_pair&& other) noexcept {
  if (this != &other) {
    if (session_) session_->fail(errc::closed);
    session_ = std::move(other.session_);
  }
  return *this;
}

nccl_pair::~nccl_pair() {
  if (session_) session_->fail(errc::closed);
}

void nccl_pair::abort(error_code why) { session_->fail(why); }
error_code nccl_pair::status() const { return session_->status(); }
const asio::any_io_executor& nccl_pair::get_executor() const { return session_->get_executor(); }

void nccl_pair::send(std::shared_ptr<nccl_session> s, std::vector<buffer> pieces, event begin, announce begun,
                     handler h) {
  auto& lane = s->out();
  auto ex = s->get_executor();
  run_as_operation(ex, transfer(std::move(s), &lane, std::move(pieces), std::move(begin), std::move(begun)),
                   std::move(h));
}

void nccl_pair::receive(std::shared_ptr<nccl_session> s, std::vector<buffer> pieces, handler h) {
  auto& lane = s->in();
  auto ex = s->get_executor();
  run_as_operation(ex, transfer(std::move(s), &lane, std::move(pieces), {}, {}), std::move(h));
}

void nccl_pair::close(std::shared_ptr<nccl_session> s, handler h) {
  auto ex = s->get_executor();
  run_as_operation(ex, closed(std::move(s)), std::move(h));
}

}  // namespace cokv::detail

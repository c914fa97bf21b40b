#include "cokv/kvstream/window.hpp"

#include <algorithm>

#include "cokv/runtime/detail/require.hpp"
#include "cokv/runtime/detail/seed_source.hpp"
#include "cokv/runtime/error.hpp"
#include "link/window_state.hpp"

namespace cokv {
namespace detail {
namespace {

void append_range(std::vector<buffer>& out, const buffer& piece, std::uint64_t begin, std::uint64_t offset,
                  std::uint64_t end) {
  const auto from = std::max(begin, offset), to = std::min(begin + piece.size(), end);
  if (from < to) out.push_back(piece.slice(from - begin, to - from));
}

}  // namespace

std::vector<buffer> range_of(const window_state& w, std::uint64_t offset, std::uint64_t length) {
  std::vector<buffer> out;
  append_range_of(out, w, offset, length);
  return out;
}

void append_range_of(std::vector<buffer>& out, const window_state& w, std::uint64_t offset, std::uint64_t length) {
  if (length == 0) return;
  auto i = static_cast<std::size_t>(std::ranges::upper_bound(w.begins, offset) - w.begins.begin()) - 1;
  for (; i < w.pieces.size() && w.begins[i] < offset + length; ++i)
    append_range(out, w.pieces[i], w.begins[i], offset, offset + length);
}

std::vector<buffer> range_of(const std::vector<buffer>& pieces, std::uint64_t offset, std::uint64_t length) {
  std::vector<buffer> out;
  std::uint64_t begin = 0;
  for (const auto& piece : pieces) {
    if (begin >= offset + length) break;
    append_range(out, piece, begin, offset, offset + length);
    begin += piece.size();
  }
  return out;
}

void window_state::revoke() {
  if (revoked) return;
  revoked = true;
  registry->remove(ref.id);
  pieces.clear();
  awaiting_commit.complete_all(errc::closed);
  turn_away(window_access::both);
}

void window_state::turn_away(window_access those) {
  const auto asked = users;  // who lets go at once leaves the list
  for (auto* user : asked)
    if (std::ranges::find(users, user) != users.end() &&
        (static_cast<unsigned>(user->how()) & static_cast<unsigned>(those)) != 0)
      user->revoked();
}

void window_state::commit() {
  committed = true;
  turn_away(window_access::put);
  settle();
}

bool window_state::whole() const {
  return committed && std::ranges::none_of(users, [](auto* u) { return u->how() == window_access::put; });
}

void window_state::settle() {
  if (whole()) awaiting_commit.complete_all({});
  if (revoked && users.empty()) revoking.complete_all({});
}

window_use::window_use(std::shared_ptr<window_state> of, window_access how, std::function<void()> on_revoke)
    : window_(std::move(of)), how_(how), on_revoke_(std::move(on_revoke)) {
  window_->users.push_back(this);
}

window_use::~window_use() {
  std::erase(window_->users, this);
  window_->settle();
}

window_registry::window_registry(asio::any_io_executor ex, std::size_t limit)
    : executor(std::move(ex)), links(seed_source::of(executor.get()).next()), limit_(limit) {}

result<std::shared_ptr<window_state>> window_registry::add(std::vector<buffer> pieces, window_access access) {
  if (used_ >= limit_) return errc::queue_full;
  std::erase_if(pieces, [](const buffer& p) { return p.empty(); });
  if (pieces.empty()) return errc::invalid_argument;
  auto w = std::make_shared<window_state>();
  for (const auto& p : pieces) {
    if (!p.host_accessible() && !reach) return errc::wrong_device;
    w->host &= p.host_accessible();
    w->begins.push_back(w->ref.size);
    w->ref.size += p.size();
  }
  w->registry = shared_from_this();
  w->access = access;
  w->pieces = std::move(pieces);
  w->ref.generation = seed_source::of(executor.get()).next();
  if (free_.empty()) {
    w->ref.id = windows_.size();
    windows_.push_back(w);
    free_.reserve(windows_.size());  // remove() must not fail
  } else {
    w->ref.id = free_.back();
    free_.pop_back();
    windows_[w->ref.id] = w;
  }
  ++used_;
  return w;
}

void window_registry::remove(std::uint64_t id) {
  windows_[id].reset();
  free_.push_back(id);
  --used_;
}

result<std::shared_ptr<window_state>> window_registry::find(const window_ref& ref, window_access access,
                                                            std::uint64_t offset, std::uint64_t length) const {
  if (ref.id >= windows_.size()) return errc::stale_reference;
  const auto& w = windows_[ref.id];
  if (!w || w->ref.generation != ref.generation) return errc::stale_reference;
  const auto wanted = static_cast<unsigned>(access);
  if ((static_cast<unsigned>(w->access) & wanted) != wanted) return errc::permission_denied;
  if (w->committed && wanted == static_cast<unsigned>(window_access::put)) return errc::closed;
  if (auto ec = w->check(offset, length)) return ec;
  return w;
}

}  // namespace detail

window& window::operator=(window&& other) noexcept {
  if (this != &other) {
    drop();
    state_ = std::move(other.state_);
  }
  return *this;
}

void window::revoke() noexcept {
  if (state_) state_->revoke();
}

void window::drop() noexcept {
  revoke();
  state_.reset();
}

window_ref window::ref() const {
  COKV_REQUIRE(state_, "a window is made by window_table::expose before it is used");
  return state_->ref;
}
std::uint64_t window::bytes_put() const noexcept { return state_ ? state_->put : 0; }
std::uint64_t window::bytes_got() const noexcept { return state_ ? state_->got : 0; }

asio::any_io_executor window::executor() const {
  COKV_REQUIRE(state_, "a window is made by window_table::expose before it is used");
  return state_->registry->executor.get();
}

void window::revoke(const std::shared_ptr<detail::window_state>& s, detail::window_waiters::beginning& begin) {
  s->revoke();
  if (s->users.empty()) return begin.complete({});
  s->revoking.push_back(begin.wait());
}

bool window::committed() const noexcept { return state_ && state_->whole(); }

void window::await_commit(const std::shared_ptr<detail::window_state>& s, detail::window_waiters::beginning& begin) {
  if (s->whole()) return begin.complete({});
  if (s->revoked) return begin.complete(errc::closed);
  s->awaiting_commit.push_back(begin.wait());
}

error_code window_table::stage(device& d, device_staging how) {
  if (registry_->reach) return errc::already_exists;
  auto made = detail::device_reach::make(d, how);
  if (!made) return made.error();
  registry_->reach = std::move(*made);
  return {};
}

window_table::window_table(asio::any_io_executor ex, std::size_t limit)
    : registry_(std::make_shared<detail::window_registry>(std::move(ex), limit)) {}

asio::any_io_executor window_table::get_executor() const { return registry_->executor.get(); }
std::size_t window_table::size() const noexcept { return registry_->size(); }

result<window> window_table::expose(std::vector<buffer> pieces, window_access access) {
  auto state = registry_->add(std::move(pieces), access);
  if (!state) return state.error();
  return window(std::move(*state));
}

}  // namespace cokv

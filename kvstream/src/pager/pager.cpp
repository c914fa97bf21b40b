#include "cokv/kvstream/pager.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "pager/pager_state.hpp"

namespace cokv {
namespace detail {
namespace {

using holds = pager_state::holds;
using landing = pager_state::landing;

std::vector<std::uint32_t> ascending(std::vector<std::uint32_t> blocks, std::uint32_t limit) {
  std::ranges::sort(blocks);
  blocks.erase(std::ranges::unique(blocks).begin(), blocks.end());
  if (!blocks.empty() && blocks.back() >= limit)
    throw std::invalid_argument("pager: there is no block " + std::to_string(blocks.back()));
  return blocks;
}

// Room for a layer that is in neither buffer: an error when there will be none. What is stuck is written back once more by
// each call that needs its buffer, and no more often: with the neighbour gone, one would always be under way.
error_code make_room(pager_state& s, std::size_t place, std::array<bool, 2>& tried) {
  if (auto* room = s.of(holds::nothing)) {
    s.bring(*room, place);
    return {};
  }
  for (auto what : {holds::failed, holds::there})  // what came ahead in vain, another order than was expected
    if (auto* l = s.of(what)) {
      l->what = holds::nothing;
      return make_room(s, place, tried);
    }
  error_code why;
  bool moving = false;
  for (std::size_t i = 0; i < s.landings.size(); ++i) {
    auto& l = s.landings[i];
    if (l.what == holds::stuck) {
      why = l.why;
      if (!std::exchange(tried[i], true)) s.send_back(l, {});
    }
    moving = moving || l.what == holds::coming || l.what == holds::leaving;
  }
  return moving ? error_code() : why;
}

awaitable<result<buffer>> await_layer(std::shared_ptr<pager_state> s, std::size_t place) {
  std::array<bool, 2> tried{};
  for (;;) {
    auto* l = s->holder(place);
    if (!l) {
      if (auto ec = make_room(*s, place, tried)) co_return ec;
      l = s->holder(place);
    } else if (l->what == holds::failed) {
      l->what = holds::nothing;
      co_return l->why;
    } else if (l->what == holds::stuck && !std::exchange(l->told, true)) {
      co_return l->why;
    } else if (l->what == holds::there || l->what == holds::stuck) {
      if (const auto missing = without(s->blocks, l->blocks); !missing.empty()) {
        s->bring_more(*l, missing);
        continue;
      }
      l->what = holds::given;
      s->look_ahead();
      co_return l->memory.slice(0, s->segment(place) * s->options.blocks);
    } else if (l->what == holds::given) {
      co_return errc::in_use;
    }
    if (auto waited = co_await s->changed.async_wait(as_result); !waited) co_return waited.error();
  }
}

awaitable<error_code> await_settled(std::shared_ptr<pager_state> s) {
  for (;;) {
    bool leaving = false;
    for (const auto& l : s->landings) leaving = leaving || l.what == holds::leaving;
    if (!leaving) break;
    if (auto waited = co_await s->changed.async_wait(as_result); !waited) co_return waited.error();
  }
  const auto* stuck = s->of(holds::stuck);
  co_return stuck ? stuck->why : error_code();
}

}  // namespace
}  // namespace detail

std::vector<std::uint32_t> spread_layers(std::uint32_t layers, std::uint32_t count) {
  if (count > layers) throw config_error("pager: more layers lent than there are");
  std::vector<std::uint32_t> out;
  for (std::uint64_t i = 1; i <= count; ++i) out.push_back(static_cast<std::uint32_t>(i * layers / count - 1));
  return out;
}

pager::pager(geometry g, source from, sink to, std::array<buffer, 2> landing, pager_options options)
    : state_(std::make_shared<detail::pager_state>(std::move(g), std::move(from), std::move(to), std::move(landing),
                                                   std::move(options))) {}
pager::~pager() {
  if (state_) state_->tasks.cancel();
}

std::uint64_t pager::lent_bytes(const geometry& g, const pager_options& o) {
  std::uint64_t n = 0;
  for (auto layer : o.lent) n += g.segment_bytes(layer) * o.blocks;
  return n;
}

std::uint64_t pager::landing_bytes(const geometry& g, const pager_options& o) {
  std::uint64_t n = 0;
  for (auto layer : o.lent) n = std::max(n, g.segment_bytes(layer) * o.blocks);
  return n;
}

bool pager::lent(std::uint32_t layer) const { return std::ranges::binary_search(state_->options.lent, layer); }
std::uint64_t pager::offset(std::uint32_t layer) const { return state_->offset(state_->place_of(layer)); }
void pager::use(std::vector<std::uint32_t> blocks) {
  state_->blocks = detail::ascending(std::move(blocks), state_->options.blocks);
}

void pager::done(std::uint32_t layer, event computed, std::vector<std::uint32_t> changed,
                 std::shared_ptr<const void> keep) {
  auto* l = state_->holder(state_->place_of(layer));
  if (!l || l->what != detail::holds::given)
    throw std::invalid_argument("pager: layer " + std::to_string(layer) + " was not given");
  l->fresh = detail::ascending(std::move(changed), state_->options.blocks);
  if (keep) l->keeps.push_back(std::move(keep));
  state_->send_back(*l, std::move(computed));
}

std::uint64_t pager::bytes_in() const noexcept { return state_->bytes_in; }
std::uint64_t pager::bytes_out() const noexcept { return state_->bytes_out; }
asio::any_io_executor pager::get_executor() const { return state_->changed.get_executor(); }

void pager::page(std::shared_ptr<detail::pager_state> s, std::uint32_t layer, detail::page_handler h) {
  const auto place = s->place_of(layer);
  const auto ex = s->changed.get_executor();
  detail::run_as_operation(ex, detail::await_layer(std::move(s), place), std::move(h));
}

void pager::write(std::shared_ptr<detail::pager_state> s, std::uint32_t layer, buffer from,
                  std::vector<std::uint32_t> blocks, asio::any_completion_handler<void(error_code)> h) {
  const auto place = s->place_of(layer);
  auto those = detail::ascending(std::move(blocks), s->options.blocks);
  if (from.size() < s->segment(place) * s->options.blocks)
    throw std::invalid_argument("pager: a layer is larger than what is to be written");
  const auto ex = s->changed.get_executor();
  detail::run_as_operation(ex, detail::write(std::move(s), place, std::move(from), std::move(those)), std::move(h));
}

void pager::settled(std::shared_ptr<detail::pager_state> s, asio::any_completion_handler<void(error_code)> h) {
  const auto ex = s->changed.get_executor();
  detail::run_as_operation(ex, detail::await_settled(std::move(s)), std::move(h));
}

}  // namespace cokv

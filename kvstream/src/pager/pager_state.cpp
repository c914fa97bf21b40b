#include "pager/pager_state.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/trace.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::detail {
namespace {

struct range {
  std::uint64_t first = 0, bytes = 0;
};

// Blocks, ascending, as bytes of their layer: neighbours together, nothing longer than a chunk.
std::vector<range> ranges_of(const std::vector<std::uint32_t>& blocks, std::uint64_t segment, std::uint64_t chunk) {
  std::vector<range> out;
  for (std::size_t i = 0; i < blocks.size();) {
    auto j = i + 1;
    while (j < blocks.size() && blocks[j] == blocks[j - 1] + 1) ++j;
    for (auto at = blocks[i] * segment; at < (blocks[j - 1] + std::uint64_t{1}) * segment;) {
      const auto n = std::min(chunk, (blocks[j - 1] + std::uint64_t{1}) * segment - at);
      out.push_back({at, n});
      at += n;
    }
    i = j;
  }
  return out;
}

enum class way : std::uint8_t { in, back };

// All of it, or the first error; nothing is on its way when it returns.
awaitable<error_code> move(std::shared_ptr<pager_state> s, buffer memory, std::size_t place,
                           std::vector<std::uint32_t> blocks, way how) {
  auto span = trace::of(s->from.get_executor())
                  .scope("KV lent", (how == way::in ? "load " : "flush ") + std::to_string(s->options.lent[place]));
  span.arg("blocks", static_cast<std::int64_t>(blocks.size()));
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    semaphore room(co_await asio::this_coro::executor, s->options.in_flight * s->options.chunk);
    for (const auto& r : ranges_of(blocks, s->segment(place), s->options.chunk)) {
      permit turn = co_await room.async_acquire(r.bytes);
      auto piece = memory.slice(r.first, r.bytes);
      const auto at = s->offset(place) + r.first;
      group.spawn([](awaitable<result<transferred>> moving, std::uint64_t& count,
                     permit) -> awaitable<error_code> {
        const auto moved = co_await std::move(moving);
        if (moved) count += moved->bytes;
        co_return moved ? error_code() : moved.error();
      }(how == way::in ? fetch(s->from, at, std::move(piece), {})
                       : flush(std::move(piece), s->to, at, {}, completion_level::visible),
                             how == way::in ? s->bytes_in : s->bytes_out, std::move(turn)));
    }
  });
  co_return v.error();
}

awaitable<void> run_bring(std::shared_ptr<pager_state> s, pager_state::landing& to) {
  auto ec = co_await move(s, to.memory, to.place, to.blocks, way::in);
  to.what = ec ? pager_state::holds::failed : pager_state::holds::there;
  to.why = ec;
  s->look_ahead();
  s->changed.notify();
}

awaitable<void> run_send_back(std::shared_ptr<pager_state> s, pager_state::landing& from, event computed) {
  error_code ec;
  // Where the step failed nothing was computed: what the neighbour has is what there is.
  if (co_await computed.async_wait(as_result)) from.changed = joined(from.changed, from.fresh);
  // Of new blocks too, which never came: should they not get there, nothing of before may be brought over them.
  from.blocks = joined(from.blocks, from.changed);
  from.fresh.clear();
  for (int tries = 0; tries == 0 || (ec && tries < 2); ++tries)
    if (!from.changed.empty()) ec = co_await move(s, from.memory, from.place, from.changed, way::back);
  from.what = ec ? pager_state::holds::stuck : pager_state::holds::nothing;
  from.why = ec;
  from.told = false;
  if (!ec) {
    from.changed.clear();
    from.keeps.clear();
  } else if (s->options.on_stuck) {
    s->options.on_stuck(ec);
  }
  s->look_ahead();
  s->changed.notify();
}

// A layer that came ahead before somebody used more of its blocks.
awaitable<void> run_bring_more(std::shared_ptr<pager_state> s, pager_state::landing& to, pager_state::holds before,
                               std::vector<std::uint32_t> missing) {
  const auto ec = co_await move(s, to.memory, to.place, missing, way::in);
  to.what = before;
  if (ec) {
    if (before == pager_state::holds::there) to.what = pager_state::holds::failed;
    to.why = ec;
    to.told = false;
  } else {
    to.blocks = joined(to.blocks, missing);
  }
  s->changed.notify();
}

}  // namespace

awaitable<error_code> write(std::shared_ptr<pager_state> s, std::size_t place, buffer from,
                            std::vector<std::uint32_t> blocks) {
  const auto forget = [&] {
    for (auto& l : s->landings)
      if (l.place == place) l.blocks = without(l.blocks, blocks);
  };
  // Nobody reads them now: what looks ahead does not bring them while they are written.
  s->blocks = without(s->blocks, blocks);
  forget();
  const auto ec = co_await move(s, std::move(from), place, blocks, way::back);
  forget();
  co_return ec;
}

std::vector<std::uint32_t> without(const std::vector<std::uint32_t>& all, const std::vector<std::uint32_t>& those) {
  std::vector<std::uint32_t> out;
  std::ranges::set_difference(all, those, std::back_inserter(out));
  return out;
}

std::vector<std::uint32_t> joined(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  std::vector<std::uint32_t> out;
  std::ranges::set_union(a, b, std::back_inserter(out));
  return out;
}

pager_state::pager_state(geometry g, source f, sink t, std::array<buffer, 2> l, pager_options o)
    : shape(std::move(g)),
      from(std::move(f)),
      to(std::move(t)),
      options(std::move(o)),
      changed(from.get_executor()),
      tasks(from.get_executor()) {
  const auto bad = [](const std::string& what) { throw config_error("pager: " + what); };
  for (std::size_t i = 0; i < options.lent.size(); ++i) {
    if (options.lent[i] >= shape.layers()) bad("there is no layer " + std::to_string(options.lent[i]));
    if (i > 0 && options.lent[i] <= options.lent[i - 1]) bad("lent layers are not ascending");
  }
  if (options.blocks == 0 || options.chunk == 0 || options.in_flight == 0) bad("no blocks, chunk or chunks in flight");
  for (std::size_t i = 0; i < 2; ++i) {
    if (l[i].size() < pager::landing_bytes(shape, options)) bad("a landing buffer is smaller than a layer");
    landings[i].memory = std::move(l[i]);
  }
  const auto bytes = pager::lent_bytes(shape, options);
  if (from.size() < bytes || to.size() < bytes) bad("the neighbour's memory is smaller than what is lent");
}

std::size_t pager_state::place_of(std::uint32_t layer) const {
  const auto it = std::ranges::lower_bound(options.lent, layer);
  if (it == options.lent.end() || *it != layer)
    throw std::invalid_argument("pager: layer " + std::to_string(layer) + " is not lent");
  return static_cast<std::size_t>(it - options.lent.begin());
}

std::uint64_t pager_state::offset(std::size_t place) const {
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < place; ++i) at += segment(i) * options.blocks;
  return at;
}

pager_state::landing* pager_state::holder(std::size_t place) {
  for (auto& l : landings)
    if (l.what != holds::nothing && l.place == place) return &l;
  return nullptr;
}

pager_state::landing* pager_state::of(holds what) {
  for (auto& l : landings)
    if (l.what == what) return &l;
  return nullptr;
}

void pager_state::bring(landing& into, std::size_t place) {
  into.what = holds::coming;
  into.place = last = place;
  into.blocks = blocks;
  into.changed.clear();
  into.why = {};
  begun = true;
  tasks.spawn(run_bring(shared_from_this(), into));
}

void pager_state::bring_more(landing& into, std::vector<std::uint32_t> missing) {
  const auto before = std::exchange(into.what, holds::coming);
  tasks.spawn(run_bring_more(shared_from_this(), into, before, std::move(missing)));
}

void pager_state::send_back(landing& back, event computed) {
  back.what = holds::leaving;
  tasks.spawn(run_send_back(shared_from_this(), back, std::move(computed)));
}

void pager_state::look_ahead() {
  if (!begun || blocks.empty() || of(holds::coming)) return;  // one by one: the first is needed first
  const auto next = (last + 1) % options.lent.size();
  auto* room = of(holds::nothing);
  if (room && !holder(next)) bring(*room, next);
}

}  // namespace cokv::detail

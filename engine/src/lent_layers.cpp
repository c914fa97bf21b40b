#include "lent_layers.hpp"

#include <algorithm>

#include "cokv/kvstream/kv_layout.hpp"
#include "cokv/runtime/detail/timeline_core.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::detail {
namespace {

buffer kept_by(const buffer& memory, std::shared_ptr<void> owner) {
  return buffer::adopt(memory.data(), memory.size(), memory.kind(), std::move(owner), memory.host_accessible());
}

// Of a step's changes: ready when the last layer's are at the neighbour, or will never be.
struct written_back {
  explicit written_back(const asio::any_io_executor& ex) : line(std::make_shared<timeline_core>(ex)) {}
  ~written_back() { line->advance(1); }
  std::shared_ptr<timeline_core> line;
};

buffer reserved(std::uint64_t bytes) {
  auto made = reserve_shared(bytes);
  if (!made) throw config_error("lent layers: no memory to be reserved: " + made.error().message());
  return *made;
}

}  // namespace

lent_layers::lent_layers(kv_pool& pool, block_cache& cache, lent_kv how, settled_handler settled)
    : pool_(pool),
      cache_(cache),
      settled_(std::move(settled)),
      options_{.lent = std::move(how.layers), .blocks = pool.blocks(), .chunk = how.chunk},
      staging_(reserved(pager::lent_bytes(pool.shape(), options_))) {
  open(std::move(how.from), std::move(how.to));
}

void lent_layers::open(source from, sink to) {
  const auto memory = std::make_shared<buffer>(pool_.memory());
  auto at = pool_.landings();
  for (auto& l : at) l = kept_by(l, memory);
  of_this_ = std::make_shared<settled_handler>(settled_);
  options_.on_stuck = [ex = from.get_executor(), weak = std::weak_ptr(of_this_)](error_code ec) {
    asio::post(ex, [weak, ec] {
      if (const auto told = weak.lock()) (*told)(ec);
    });
  };
  pages_ = std::make_shared<pager>(pool_.shape(), std::move(from), std::move(to), std::move(at), options_);
  landing_ = memory;
}

void lent_layers::lose() {
  in_before_ = bytes_in();
  out_before_ = bytes_out();
  of_this_.reset();
  pages_.reset();
  keep_.reset();
}

error_code lent_layers::lend(source from, sink to) {
  if (!landing_.expired()) return errc::in_use;
  const auto bytes = pager::lent_bytes(pool_.shape(), options_);
  if (from.size() < bytes || to.size() < bytes) return errc::out_of_memory;
  open(std::move(from), std::move(to));
  return {};
}

void lent_layers::use(std::span<const batch_sequence> step) {
  const auto tokens = pool_.shape().block_tokens();
  std::vector<std::uint32_t> context;
  changed_.clear();
  for (const auto& s : step) {
    const auto end = s.start + s.tokens.size();
    for (std::size_t b = 0; b * tokens < s.start; ++b) context.push_back(s.blocks[b]);
    for (std::size_t b = s.start / tokens; b * tokens < end; ++b) changed_.push_back(s.blocks[b]);
  }
  if (!pages_) return;
  pages_->use(std::move(context));
  const auto ex = pages_->get_executor();
  auto keep = std::make_shared<written_back>(ex);
  const event back(keep->line, 1);
  for (auto b : changed_) cache_.device()->quarantine(b, back);
  back.async_wait(asio::bind_executor(ex, [weak = std::weak_ptr(of_this_)](error_code) {
    if (const auto told = weak.lock()) (*told)({});
  }));
  keep_ = std::move(keep);
}

awaitable<error_code> lent_layers::bring(std::uint32_t layer, event before) {
  const auto ex = co_await asio::this_coro::executor;
  auto& time = clock::of(ex);
  // When there was nothing left to compute.
  const auto idle = std::make_shared<std::optional<time_point>>();
  before.async_wait(asio::bind_executor(ex, [idle, &time](error_code) { *idle = time.now(); }));
  const auto pages = pages_;  // it may be lost meanwhile
  if (!pages) co_return errc::unavailable;
  const auto begun = time.now();
  auto kv = co_await pages->async_layer(layer, as_result);
  if (!kv && pages == pages_) kv = co_await pages->async_layer(layer, as_result);
  if (*idle) waited_ += time.now() - std::max(begun, **idle);
  if (pages != pages_) co_return errc::unavailable;
  if (!kv) co_return kv.error();
  pool_.place(layer, *kv);
  co_return error_code();
}

void lent_layers::computed(std::uint32_t layer, event done) {
  if (pages_) pages_->done(layer, std::move(done), changed_, keep_);
}

kv_view lent_layers::room(std::span<const block_index> blocks) const {
  struct room_memory {
    buffer pool, staging;
    std::vector<buffer> blocks;  // a part of each, by which it is not handed out again
  };
  const auto& g = pool_.shape();
  const auto all = std::make_shared<room_memory>(room_memory{pool_.memory(), staging_, {}});
  std::uint32_t here = 0;
  while (has(here)) ++here;
  for (auto b : blocks) all->blocks.push_back(cache_.segment(here, b));

  std::vector<std::vector<plane_strides>> groups;
  std::vector<buffer> memory;
  std::uint64_t staged = 0;
  for (const auto& group : g.groups()) {
    const auto segment = g.segment_bytes(group.first), layer_bytes = segment * pool_.blocks();
    auto& planes = groups.emplace_back();
    for (std::size_t i = 0; i < group.planes.size(); ++i)
      planes.push_back({.offset = g.plane_offset(group.first, 0, i),
                        .page = segment,
                        .head = group.planes[i].per_head ? g.head_bytes(group.first) : 0,
                        .token = g.row_bytes(group.first, i),
                        .buffer = group.first,
                        .next_buffer = 1});
    for (auto l = group.first; l < group.first + group.count; ++l) {
      memory.push_back(kept_by(
          has(l) ? staging_.slice(staged, layer_bytes) : pool_.memory().slice(pool_.offset(l, 0), layer_bytes), all));
      if (has(l)) staged += layer_bytes;
    }
  }
  return {kv_layout::strided(g, {pool_.blocks(), g.block_tokens()}, std::move(groups)), std::move(memory)};
}

awaitable<error_code> lent_layers::put(std::vector<block_index> blocks) {
  const auto pages = pages_;
  if (!pages) co_return errc::unavailable;
  error_code ec;
  for (auto layer : options_.lent) {
    const auto from = staging_.slice(pages->offset(layer), pool_.shape().segment_bytes(layer) * pool_.blocks());
    ec = (co_await pages->async_write(layer, from, blocks, as_result)).error();
    if (ec && pages == pages_) ec = (co_await pages->async_write(layer, from, blocks, as_result)).error();
    if (ec) break;
  }
  forget(std::move(blocks));
  co_return pages == pages_ ? ec : make_error_code(errc::unavailable);
}

// Neighbours together: each is a call to the system.
void lent_layers::forget(std::vector<block_index> blocks) {
  std::ranges::sort(blocks);
  std::uint64_t at = 0;
  for (auto layer : options_.lent) {
    const auto segment = pool_.shape().segment_bytes(layer);
    for (std::size_t i = 0, n; i < blocks.size(); i += n) {
      for (n = 1; i + n < blocks.size() && blocks[i + n] == blocks[i] + n;) ++n;
      give_back(staging_.slice(at + segment * blocks[i], segment * n));
    }
    at += segment * pool_.blocks();
  }
}

}  // namespace cokv::detail

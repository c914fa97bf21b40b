#include "serve/borrowing.hpp"

#include <spdlog/spdlog.h>

#include "cokv/kvstream/lending_bound.hpp"
#include "cokv/kvstream/pager.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/size.hpp"
#include "cokv/runtime/with.hpp"
#include "serve/key_file.hpp"

namespace cokv::serve {
namespace {

using namespace std::chrono_literals;
using seconds = std::chrono::duration<double>;

http::client lender_of(const asio::any_io_executor& ex, const options& o, const std::string& url) {
  const auto at = http::parse_server_url(url);
  if (!at) throw config_error("--borrow-from: " + url + ": takes http://HOST:PORT or https://HOST:PORT");
  http::client_options how;
  if (!o.borrow_key_file.empty()) how.api_key = first_key("--borrow-key-file", o.borrow_key_file);
  return http::client(ex, *at, how);
}

seconds since(const clock& time, time_point begun) { return std::max<seconds>(time.now() - begun, 1ns); }

// All of the window once, as a pager fetches blocks that are not neighbours.
awaitable<error_code> fetch_all(source from, buffer into, std::uint64_t piece) {
  const pager_options how;
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    const auto room_bytes = std::max<std::uint64_t>(how.in_flight * how.chunk, piece);
    semaphore room(co_await asio::this_coro::executor, room_bytes);
    for (std::uint64_t at = 0; at < into.size(); at += piece) {
      const auto n = std::min(piece, into.size() - at);
      permit turn = co_await room.async_acquire(n);
      group.spawn([](source from, std::uint64_t at, buffer part, permit) -> awaitable<error_code> {
        co_return (co_await async_fetch(from, at, part, {}, as_result)).error();
      }(from, at, into.slice(at, n), std::move(turn)));
    }
  });
  co_return v.error();
}

// Of a step that reads all blocks, and all weights.
lending_bound bound_of(const borrowing::need& n, const borrowing::rates& r, std::uint32_t blocks) {
  return {.link = r.link,
          .memory = r.memory,
          .kv_bytes = static_cast<double>(n.shape.block_bytes()) * blocks,
          .overhead = r.overhead,
          .other = seconds(n.weight_bytes / r.memory)};
}

}  // namespace

result<borrowing::plan> borrowing::decide(const need& n, const rates& r, std::uint64_t free, std::uint32_t wanted) {
  const auto layers = n.shape.layers();
  std::uint64_t largest = 0;
  for (std::uint32_t l = 0; l < layers; ++l) largest = std::max(largest, n.shape.segment_bytes(l));
  const auto own = static_cast<double>(n.shape.block_bytes()) * n.blocks;
  const auto with = [&](std::uint32_t lent) {
    std::uint64_t theirs = 0;
    for (auto l : spread_layers(layers, lent)) theirs += n.shape.segment_bytes(l);
    const auto here = n.shape.block_bytes() - theirs + 2 * largest;
    const auto blocks = std::min(own / static_cast<double>(here), 4e9);
    return plan{lent, static_cast<std::uint32_t>(blocks), theirs * static_cast<std::uint32_t>(blocks)};
  };
  if (wanted > 0) {
    const auto p = with(wanted);
    if (p.blocks == 0)
      throw config_error("--borrow-layers: " + std::to_string(wanted) + " leave no room for a block in --kv-blocks");
    if (p.bytes > free) return errc::out_of_memory;
    return p;
  }
  bool hides = false;
  for (auto lent = layers - 1; lent >= 3 && lent < layers; --lent) {
    const auto p = with(lent);
    if (p.blocks == 0 || bound_of(n, r, p.blocks).layers(layers) < lent) continue;
    if (p.bytes <= free) return p;
    hides = true;
  }
  if (hides) return errc::out_of_memory;
  return plan{};
}

borrowing::borrowing(device where, const options& o) : where_(std::move(where)), windows_(where_.get_executor()) {
  if (where_.name() != "cpu")
    if (auto ec = windows_.stage(where_))
      throw config_error("--device " + o.device + ": no pinned memory for links: " + ec.message());
  // The ranks of a job wait for each other as they join it: this one has to before it asks another one for anything.
  if (std::ranges::any_of(o.links, [](auto& url) { return url.starts_with("mpi://"); }))
    if (auto joined = link_listener::listen(windows_, "mpi://"); !joined)
      throw config_error("--link mpi://: " + joined.error().message());
  for (const auto& url : o.borrow_from) lenders_.push_back(lender_of(where_.get_executor(), o, url));
}

awaitable<std::unique_ptr<borrowing>> borrowing::open(device where, const options& o, const model_config& config,
                                                      const engine_options& plain) {
  const auto type = *parse_dtype(o.dtype);
  if (o.borrow_layers >= config.layers)
    throw config_error("--borrow-layers: the model has " + std::to_string(config.layers) + ", one stays at the least");
  const auto shape = geometry::attention(config.layers, config.kv_heads, config.head_dim, type, o.block_tokens);
  const need n{.shape = shape,
               .blocks = static_cast<std::uint32_t>(kv_pool_bytes(plain, config, type) / shape.block_bytes()),
               .weight_bytes = static_cast<double>(weight_bytes(config, type))};
  std::unique_ptr<borrowing> out(new borrowing(std::move(where), o));
  out->piece_ = std::min<std::uint64_t>(shape.segment_bytes(0), pager_options().chunk);
  auto& time = clock::of(co_await asio::this_coro::executor);
  const auto begun = time.now();
  error_code why;
  for (bool told = false; time.now() - begun < 60s; told = true) {
    for (std::size_t i = 0; i < out->lenders_.size(); ++i) {
      why = co_await out->look(i, n, o.borrow_layers);
      if (!why) co_return out;
      if (!told) spdlog::info("--borrow-from {}: {}", out->lenders_[i].at().to_string(), why.message());
    }
    if (!told) spdlog::info("it is tried again for a minute");
    co_await time.async_wait_for(500ms, asio::deferred);
  }
  throw config_error("--borrow-from: nobody lends: " + why.message());
}

// What this one lends, how fast it is, and what follows.
awaitable<error_code> borrowing::look(std::size_t lender, const need& n, std::uint32_t wanted) {
  auto& from = lenders_[lender];
  const auto free = co_await cluster::lendable(from);
  if (!free) co_return free.error();
  if (*free == 0) co_return errc::out_of_memory;
  constexpr std::uint64_t probe = 64 << 20;
  auto part = co_await cluster::borrow(from, windows_, std::min(*free, probe));
  if (!part) co_return part.error();
  const auto fast = co_await measure(where_, part->memory(), piece_);
  part->link.close();
  (void)co_await part->link.async_closed(as_result);
  if (!fast) co_return fast.error();
  const auto decided = decide(n, *fast, *free, wanted);
  if (!decided) co_return decided.error();
  plan_ = *decided;
  const auto layers = n.shape.layers();
  const auto speeds = fmt::format("{:.2f} GB/s from there, {:.1f} GB/s here", fast->link / 1e9, fast->memory / 1e9);
  if (!needed()) {
    spdlog::info("no layers are kept by {}: too few would hide ({})", from.at().to_string(), speeds);
    co_return error_code();
  }
  // What was given back is free in a moment.
  auto& time = clock::of(co_await asio::this_coro::executor);
  auto all = co_await cluster::borrow(from, windows_, plan_.bytes);
  for (int tries = 0; !all && all.error() == errc::out_of_memory && tries < 100; ++tries) {
    co_await time.async_wait_for(10ms, asio::deferred);
    all = co_await cluster::borrow(from, windows_, plan_.bytes);
  }
  if (!all) co_return all.error();
  loan_ = std::move(*all);
  layers_ = spread_layers(layers, plan_.layers);
  last_ = lender;
  spdlog::info("{} of {} layers are kept by {}: {} of its memory, {} KV blocks instead of {} ({})", plan_.layers,
               layers, from.at().to_string(), format_size(plan_.bytes), plan_.blocks, n.blocks, speeds);
  if (plan_.blocks <= n.blocks)
    spdlog::warn("--borrow-layers {}: no more blocks than without, since two layers' room is for what comes",
                 plan_.layers);
  if (const auto hidden = bound_of(n, *fast, plan_.blocks).layers(layers); hidden < plan_.layers)
    spdlog::warn("--borrow-layers {}: only {} hide behind computing; full steps wait for the rest", plan_.layers,
                 hidden);
  co_return error_code();
}

awaitable<result<borrowing::rates>> borrowing::measure(device where, source from, std::uint64_t piece) {
  const auto& time = clock::of(where.get_executor());
  auto into = where.allocate(from.size());
  auto copies = where.make_stream({.name = "measure"});
  if (!into || !copies) co_return !into ? into.error() : copies.error();
  rates out;
  // The first time pages come about, on both sides.
  if (auto ec = co_await fetch_all(from, *into, piece)) co_return ec;
  auto begun = time.now();
  std::uint64_t bytes = 0;
  for (; bytes == 0 || since(time, begun) < 50ms; bytes += into->size())
    if (auto ec = co_await fetch_all(from, *into, piece)) co_return ec;
  out.link = static_cast<double>(bytes) / since(time, begun).count();

  begun = time.now();
  const auto byte = into->slice(0, 1);
  if (auto one = co_await async_fetch(from, 0, byte, {}, as_result); !one) co_return one.error();
  out.overhead = since(time, begun);

  // A copy reads and writes: it moves twice what it copies. Attention reads no faster.
  const auto half = into->size() / 2;
  begun = time.now();
  for (bytes = 0; bytes == 0 || since(time, begun) < 50ms; bytes += 2 * std::max<std::uint64_t>(half, 1)) {
    if (auto ec = copies->copy(into->slice(0, half), into->slice(half, half))) co_return ec;
    if (auto done = co_await copies->record().async_wait(as_result); !done) co_return done.error();
  }
  out.memory = static_cast<double>(bytes) / since(time, begun).count();
  co_return out;
}

void borrowing::put_into(engine_options& o) {
  o.kv_blocks = plan_.blocks;
  o.lent = lent_kv{.layers = layers_, .from = loan_.memory(), .to = loan_.memory_to()};
  // The link's end is what run() waits for.
  o.on_lender_lost = [this](error_code why) {
    spdlog::warn("layers of KV that {} kept are lost, and all KV with them: {}", lenders_[last_].at().to_string(),
                 why.message());
    loan_.link.close();
  };
}

// The one that lent is asked last: it may be going.
awaitable<result<cluster::loan>> borrowing::ask() {
  error_code why = errc::unavailable;
  for (std::size_t i = 1; i <= lenders_.size(); ++i) {
    const auto next = (last_ + i) % lenders_.size();
    auto got = co_await cluster::borrow(lenders_[next], windows_, plan_.bytes);
    if (got) {
      last_ = next;
      co_return got;
    }
    why = got.error();
  }
  co_return why;
}

// As soon as nothing of before is under way, if the loan lasts.
awaitable<error_code> borrowing::lend_to(engine& e, const cluster::loan& l) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  for (;;) {
    if (auto gone = l.link.error()) co_return gone;
    const auto ec = e.lend(l.memory(), l.memory_to());
    if (ec != errc::in_use) co_return ec;
    co_await time.async_wait_for(10ms, asio::deferred);
  }
}

awaitable<void> borrowing::run(engine& e) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  for (;;) {
    co_await loan_.link.async_closed(asio::deferred);
    e.end_lending(loan_.link.error());
    for (auto told = time_point::min();;) {
      auto got = co_await ask();
      const auto ec = got ? co_await lend_to(e, *got) : got.error();
      if (!ec) {
        loan_ = std::move(*got);
        break;
      }
      if (told == time_point::min() || time.now() - told > 1min) {
        spdlog::warn("nobody lends {} for {} layers of KV: {}; it is tried again", format_size(plan_.bytes),
                     plan_.layers, ec.message());
        told = time.now();
      }
      co_await time.async_wait_for(500ms, asio::deferred);
    }
    spdlog::info("{} layers are kept by {}", plan_.layers, lenders_[last_].at().to_string());
  }
}

}  // namespace cokv::serve

#include "serve/run.hpp"

#include <spdlog/spdlog.h>

#include "cache/events.hpp"
#include "checkpoint.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"
#include "cokv/runtime/size.hpp"
#include "cokv/runtime/with.hpp"
#include "http/serve.hpp"
#include "openai/engine_backend.hpp"
#include "openai/service.hpp"
#include "random_id.hpp"
#include "serve/activity.hpp"
#include "serve/borrowing.hpp"
#include "serve/conversion.hpp"
#include "serve/engine_metrics.hpp"
#include "serve/front.hpp"
#include "serve/joining.hpp"
#include "serve/parts.hpp"
#include "serve/router.hpp"
#include "serve/tiers.hpp"
#include "serve/trace_file.hpp"
#include "serve/worker.hpp"
#include "view/engine_status.hpp"
#include "view/routes.hpp"

namespace cokv::serve {
namespace {

std::shared_ptr<model> load_weights(const options& o, device where, model_part part = {}, bool aside = false) {
  int said = 0;
  auto progress = [&said, &o](std::uint64_t done, std::uint64_t total) {
    if (total < (256ull << 20)) return;  // a moment
    const int tenths = static_cast<int>(10 * done / total);
    if (tenths > said) spdlog::info("{}: {} % of {}", o.model.dir, 10 * tenths, format_size(total));
    said = std::max(said, tenths);
  };
  return load(o.model, {.compute = *parse_dtype(o.dtype),
                        .progress = progress,
                        .where = std::move(where),
                        .batch_invariant = o.batch_invariant,
                        .aside = aside,
                        .part = std::move(part)});
}

device open(const options& o, const asio::any_io_executor& ex) {
  auto d = open_device(ex, o.device, {.threads = o.threads});
  if (!d) throw config_error("--device: " + explain_device(o.device));
  return *d;
}

engine_options engine_options_of(const options& o, const tiers& opened, change_handler on_kv_change = {}) {
  engine_options out;
  out.kv_blocks = o.kv_blocks;
  out.block_tokens = o.block_tokens;
  out.max_batched_tokens = o.max_batched_tokens;
  out.max_running = o.max_running;
  out.max_requests = o.max_requests;
  out.max_sequence = o.max_sequence;
  out.async_scheduling = o.async_scheduling;
  out.microbatches = o.microbatches;
  out.swap = o.swap;
  out.swap_by = o.swap_by == "microbatch" ? swap_unit::microbatch : swap_unit::sequence;
  out.tiers = opened.list;
  out.on_kv_change = std::move(on_kv_change);
  // A cache, or a prefill worker, on this machine copies blocks from the pool, or into it, itself.
  out.kv_memory = kv_memory_of(o);
  if (o.device == "cpu" && opened.remote && opened.remote->on_this_machine()) out.kv_memory = memory_kind::shared;
  out.policy = o.kv_policy == "always" ? kv_policy::always : kv_policy::automatic;
  out.connector.on_tier_bad = [](std::string_view tier, error_code why) {
    spdlog::warn("KV tier {}: {}; what it would have held is computed until it is back", tier, why.message());
  };
  out.connector.on_tier_full = [](std::string_view tier, error_code why) {
    spdlog::warn("KV tier {}: {}; what finds no room in it is not kept, and is computed when it is asked for again",
                 tier, why.message());
  };
  out.on_broken = [](error_code, std::string_view what) {
    spdlog::error("the engine can't go on: {}; its requests failed, and more are refused", what);
  };
  out.connector.on_tier_good = [](std::string_view tier) { spdlog::info("KV tier {} is back", tier); };
  return out;
}

// Before the weights are read: a model's blocks are known by its config.
void check_tiers(const options& o, const model_config& config) {
  const auto block = kv_block_bytes(config, *parse_dtype(o.dtype), o.block_tokens);
  const std::uint64_t file_head = 4096, of_a_layer = 16 + (o.kv_direct ? file_head : 0);
  if (o.swap != 0) check_holds_a_block("--swap", o.swap, block);
  if (o.kv_host != 0) check_holds_a_block("--kv-host", o.kv_host, block);
  if (!o.kv_dir.empty()) check_holds_a_block("--kv-disk", o.kv_disk, block, 2 * file_head + of_a_layer * config.layers);
}

// Likewise: what does not fit is told before minutes of reading, not by the system's killer at the first long prompt.
void check_fits(const options& o, const model_config& config, bool lends = true) {
  if (o.device != "cpu") return;
  const auto type = *parse_dtype(o.dtype);
  detail::check_memory_for({{"weights", weight_bytes(config, type)},
                            {"KV blocks", kv_pool_bytes(engine_options_of(o, {}), config, type)},
                            {"--lend-memory", lends ? o.lend_memory : 0},
                            {"--replica-memory", o.replicas > 0 ? o.replica_memory : 0},
                            {"--swap", lends ? o.swap : 0},
                            {"--kv-host", o.kv_host}});
}

std::unique_ptr<engine> make_engine(const asio::any_io_executor& ex, const options& o, device where,
                                    std::shared_ptr<model> what, const tokenizer& text, const tiers& opened,
                                    cache::event_log& kv, borrowing* borrowed, leading* leads) {
  auto how = engine_options_of(o, opened, kv.of("device"));
  if (leads) how.copies = leads->copies();
  if (leads) how.on_ranks_lost = [leads](error_code why) { leads->lost(why); };
  if (borrowed) borrowed->put_into(how);
  return std::make_unique<engine>(ex, std::move(where), std::move(what), text, std::move(how));
}

awaitable<void> serve(const options& o, std::ostream& out, std::optional<part_choice> mine) {
  const auto ex = co_await asio::this_coro::executor;
  constexpr std::size_t spans_for_metrics = 1 << 14, spans_for_file = 1 << 20;
  std::optional<trace_file> file;
  if (!o.trace.empty()) file.emplace("--trace", o.trace);
  auto& spans = trace::of(ex);
  spans.enable(file ? spans_for_file : spans_for_metrics);

  http::metrics page;
  http::server server(ex, front_of(o, page));
  server.listen(o.listen);  // before the model is read: a port in use is told at once

  const auto whole = load_config(o.model);
  const auto config = mine ? part_of(whole, mine->part) : whole;
  auto text = tokenizer::load(o.model.dir);
  check_vocabulary(o.model, text, config);
  auto chat = chat_template::load(o.model.dir);
  check_tiers(o, config);
  check_fits(o, config);
  const auto where = open(o, ex);
  std::optional<leading> leads;
  if (mine) leads.emplace(ex, o, *mine);
  auto what = load_weights(o, where, mine ? mine->part : model_part());
  cache::event_log kv_events(random_number());
  const auto opened = co_await open_tiers(o, kv_events);
  const auto& tiers = opened.list;
  std::unique_ptr<borrowing> borrowed;
  if (!o.borrow_from.empty()) borrowed = co_await borrowing::open(where, o, config, engine_options_of(o, {}));
  if (borrowed && !borrowed->needed()) borrowed.reset();
  const auto made = make_engine(ex, o, where, what, text, opened, kv_events, borrowed.get(), leads ? &*leads : nullptr);
  auto& runs = *made;
  openai::engine_backend backend(runs, text);
  openai::service api(
      backend, api_of(o, what->fingerprint(), what->config().sampling, std::move(chat), clock::of(ex).wall_now()),
      page);
  add_engine_metrics(page, runs, tiers, [&api] { return api.refused_before_engine(); });
  if (opened.remote) add_node_metrics(page, opened.remote);
  api.route(server);
  page.route(server);
  http::route_health(server, [&runs] { return std::string(runs.counters().broken ? "the engine can't go on" : ""); });
  server.route(http::verb::get, "/v1/events", [&kv_events](http::exchange& x) { return cache::follow(x, kv_events); },
               {.any_of = static_cast<std::uint8_t>(http::right::admin), .query = {"namespace"}});
  spdlog::info("{} on {} in {}: {} KV blocks of {} tokens, sequences up to {}", name_of(o), o.device, o.dtype,
               runs.counters().blocks, o.block_tokens, runs.max_sequence());

  if (mine) spdlog::info("{}; it leads", describe(*mine, whole));

  const auto grace = std::chrono::seconds(o.grace);
  const auto reload = [&] {
    reload_front(server, o);
    if (opened.remote) opened.remote->reload();
  };
  std::optional<worker> of_several;
  std::optional<joining> joins;
  if (o.role != "both") {
    auto& w = of_several.emplace(ex, runs, where, o, tiers, leads ? &leads->others() : nullptr);
    w.route(server);
    page.add([&w](http::scrape& s) { w.measure(s); });
    if (!o.join.empty()) joins.emplace(ex, o, own_url(o, server.local_endpoint()), w.life());
    for (auto& url : of_several->links())
      if (o.role != "prefill")
        spdlog::info("KV comes in at {}", url);
      else if (o.lend_memory != 0)
        spdlog::info("memory is lent at {}", url);
  }
  view::journal events(ex);
  const auto describe = [&] {
    return view::engine_status({.role = o.role,
                                .counters = runs.counters(),
                                .cached = runs.kv_counters().device.cached,
                                .doing = of_several ? of_several->activity() : activity_of(runs, tiers),
                                .drawn = view::timeline_of(spans, std::chrono::seconds(5))});
  };
  view::route_view(server, describe, events, name_of(o));
  channel<char> ended(ex, 1);
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(api.run());
    if (of_several)
      group.spawn([&]() -> awaitable<void> {
        co_await of_several->run();
        ended.close();
      });
    // It leaves before it drains: what it is given meanwhile it would refuse.
    const auto drain = [&](duration left) {
      if (!joins || left == duration(0)) return http::drain(server, "cokv serve", left);
      group.spawn([&, left]() -> awaitable<void> {
        co_await joins->leave();
        http::drain(server, "cokv serve", left);
      });
    };
    const auto serving = [&]() -> awaitable<void> {
      auto all = co_await with(task_group{}, [&](task_group& beside) -> awaitable<void> {
        if (joins) beside.spawn(joins->run());
        if (borrowed) beside.spawn(borrowed->run(runs));
        if (leads) beside.spawn(leads->run(runs));
        co_await server.run();
        beside.cancel();
      });
      if (all.error() && all.error() != asio::error::operation_aborted) throw boost::system::system_error(all.error());
    };
    co_await http::serve_until_signalled({server.local_endpoint(), server.secure(), serving, drain}, "cokv serve", out,
                                         grace, reload);
    api.close();
    if (!of_several) co_return;
    of_several->close();
    const auto over = co_await with_deadline(ended.async_receive(asio::deferred), grace);
    if (over.error() != errc::deadline) co_return;
    // A room that a peer may write is not given up before the peer is gone, or this process.
    spdlog::warn("a peer that does not answer has memory of this process, which ends all the same");
    std::_Exit(1);
  });
  if (v.error()) throw boost::system::system_error(v.error());
  if (auto drained = co_await with_deadline(runs.async_drain(), grace); !drained)
    spdlog::info("not all KV reached its tiers: {}", drained.error().message());
  if (file) file->write(spans);
}

// A worker that is not the first: no HTTP server, and no tokens' text.
awaitable<void> follow(const options& o, std::ostream& out, part_choice mine) {
  const auto ex = co_await asio::this_coro::executor;
  auto& spans = trace::of(ex);
  std::optional<trace_file> file;
  if (!o.trace.empty()) {
    file.emplace("--trace", o.trace + '.' + std::to_string(mine.number));
    spans.enable(1 << 20);
  }
  const auto where = open(o, ex);
  const auto whole = load_config(o.model);
  peer_link held;
  if (mine.spare() && !co_await wait_as_spare(o, out, mine, held)) co_return;
  check_fits(o, part_of(whole, mine.part), false);
  spdlog::info("{}", describe(mine, whole));
  co_await serve_part(o, out, mine, where, [&] { return load_weights(o, where, mine.part, true); }, std::move(held));
  if (file) file->write(spans);
}

awaitable<void> process_of(const options& o, std::ostream& out) {
  if (o.role == "router") return serve_router(o, out);
  std::optional<part_choice> mine;
  if (o.pipeline * o.tensor > 1) mine = choose_part(o);
  return mine && mine->number > 0 ? follow(o, out, *mine) : serve(o, out, mine);
}

}  // namespace

void run(const options& o, std::ostream& out) {
  asio::io_context context(1);
  std::exception_ptr failed;
  try {
    asio::co_spawn(context, process_of(o, out), [&](std::exception_ptr e) {
      failed = e;
      context.stop();  // kept connections and the like are no reason to stay
    });
    context.run();
    if (failed) std::rethrow_exception(failed);
  } catch (const config_error& e) {
    throw by_flag(e);
  }
}

}  // namespace cokv::serve

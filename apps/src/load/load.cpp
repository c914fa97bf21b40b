#include "load/load.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <boost/asio/signal_set.hpp>
#include <boost/json/serialize.hpp>
#include <csignal>

#include "cli/result_file.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"
#include "load/goodput.hpp"
#include "load/report.hpp"
#include "load/runner.hpp"
#include "serve/key_file.hpp"

namespace cokv::workload {
namespace {

using namespace std::chrono_literals;

std::vector<load_item> items_at(const options& o, double rate) {
  auto d = o.what;
  d.rate = rate;
  return items_of(d);
}

awaitable<std::string> first_model(http::client& server) {
  const auto reply = co_await server.get("/v1/models");
  if (!reply) throw std::runtime_error("load: " + server.at().to_string() + ": " + reply.error().message());
  const auto v = reply->code == 200 ? http::parse_json(reply->body) : http::problem();
  const auto* data = v && v->is_object() ? v->as_object().if_contains("data") : nullptr;
  const auto* first = data && data->is_array() && !data->as_array().empty() ? data->as_array()[0].if_object() : nullptr;
  const auto* id = first ? first->if_contains("id") : nullptr;
  if (!id || !id->is_string())
    throw std::runtime_error(fmt::format("load: {}/v1/models: status {}, and no model; --model names one",
                                         server.at().to_string(), reply->code));
  co_return std::string(id->as_string());
}

struct outcome {
  std::vector<request_record> all;
  summary figures;
  bool stopped = false;
};

struct job {
  const options& o;
  cli::streams io;
  http::client& server;
  slo bounds;
  prompt_options prompts;
  std::size_t max_in_flight;

  awaitable<outcome> once(double rate, std::uint64_t run = 0) {
    outcome out;
    const auto items = items_at(o, rate);
    // No run's prompts are another's: a server's cache has none of them.
    auto mine = prompts;
    mine.seed += run * 0x9e3779b97f4a7c15u;
    const prompt_maker make(mine);
    asio::signal_set signals(co_await asio::this_coro::executor, SIGINT, SIGTERM);
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> {
        if (!co_await signals.async_wait(as_result)) co_return;
        out.stopped = true;
        group.cancel();
      });
      co_await run_load(server, items, make,
                        {.timeout = std::chrono::seconds(o.timeout), .max_in_flight = max_in_flight}, out.all);
      signals.cancel();
    });
    out.figures = summarise(out.all, bounds);
    co_return out;
  }

  // 0: there is none, and the last run beside.
  awaitable<std::pair<double, outcome>> goodput() {
    goodput_search search(o.what.rate, o.attainment);
    outcome best;
    std::uint64_t runs = 0;
    while (const auto rate = search.next()) {
      auto now = co_await once(*rate, runs++);
      const double share = now.figures.attainment.value_or(1);
      io.out << fmt::format("{:.3f} requests/s: {:.1f} % meet the bounds\n", *rate, 100 * share) << std::flush;
      const bool none = search.found() == 0;
      const bool stopped = now.stopped;
      if ((!stopped && search.tried(share)) || none) best = std::move(now);
      if (stopped) break;
    }
    co_return std::pair(search.found(), std::move(best));
  }
};

// A connection a request, and some files: as many as this process may be given.
std::size_t most_connections(std::size_t wanted) {
  constexpr rlim_t others = 32;
  rlimit now{};
  if (::getrlimit(RLIMIT_NOFILE, &now) != 0 || now.rlim_cur == RLIM_INFINITY) return wanted;
  if (const auto all = static_cast<rlim_t>(wanted) + others; now.rlim_cur < all) {
    now.rlim_cur = now.rlim_max == RLIM_INFINITY ? all : std::min(all, now.rlim_max);
    (void)::setrlimit(RLIMIT_NOFILE, &now);
    (void)::getrlimit(RLIMIT_NOFILE, &now);
  }
  const auto most = now.rlim_cur > others ? std::min<std::size_t>(wanted, now.rlim_cur - others) : 1;
  if (most < wanted)
    spdlog::warn("--max-in-flight: {} at once, for this process may open no more than {} files (ulimit -n)", most,
                 static_cast<std::uint64_t>(now.rlim_cur));
  return most;
}

awaitable<int> all_of(const options& o, cli::streams io) {
  const auto at = http::parse_server_url(o.url);
  if (!at) throw config_error("--url: " + o.url + ": takes http://HOST:PORT or https://HOST:PORT");
  http::client_options how;
  how.max_connections = how.max_idle = most_connections(o.max_in_flight);
  how.connect = std::chrono::seconds(o.timeout);
  if (!o.ca_file.empty()) how.tls = tls_context::client({.ca_file = o.ca_file});
  if (!o.api_key_file.empty()) how.api_key = serve::first_key("--api-key-file", o.api_key_file);
  http::client server(co_await asio::this_coro::executor, *at, how);
  cli::result_file figures("--json", o.json), picture("--plot", o.plot);
  job j{o, io, server, {}, o.prompts, how.max_connections};
  if (o.slo_ttft) j.bounds.ttft_ms = *o.slo_ttft;
  if (o.slo_tpot) j.bounds.tpot_ms = *o.slo_tpot;
  if (j.prompts.model.empty()) j.prompts.model = co_await first_model(server);
  j.prompts.chat = o.endpoint == "chat";

  outcome out;
  std::optional<double> goodput;
  if (o.find_goodput)
    std::tie(goodput, out) = co_await j.goodput();
  else
    out = co_await j.once(o.what.rate);
  if (goodput)
    io.out << fmt::format("goodput: {:.3f} requests/s with {:g} % within the bounds\n\n", *goodput, 100 * o.attainment);
  if (!out.all.empty()) print_table(io.out, out.figures, j.bounds);
  if (figures.wanted()) {
    auto told = to_json(out.figures, j.bounds, out.all);
    if (goodput) told["goodput_per_s"] = *goodput;
    figures.write(boost::json::serialize(told) + '\n');
  }
  if (picture.wanted())
    picture.write(plot(out.all, j.bounds,
                       fmt::format("{}, {:.2f} requests/s answered, {:.0f} output tokens/s", j.prompts.model,
                                   out.figures.answered_per_s, out.figures.output_tokens_per_s)));
  co_return out.figures.answered > 0 ? 0 : 1;
}

}  // namespace

int run(const options& o, cli::streams io) {
  // What is wrong with a file is told before anything is sent.
  (void)items_of(o.what);
  asio::io_context context(1);
  int code = 1;
  std::exception_ptr failed;
  asio::co_spawn(context, all_of(o, io), [&](std::exception_ptr e, int c) { failed = e, code = c; });
  context.run();
  if (failed) std::rethrow_exception(failed);
  return code;
}

}  // namespace cokv::workload

#include "serve/router.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "cluster/members_routes.hpp"
#include "cluster/remote_answers.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"
#include "http/serve.hpp"
#include "random_id.hpp"
#include "serve/front.hpp"
#include "serve/key_file.hpp"
#include "serve/reign.hpp"
#include "serve/router_metrics.hpp"
#include "view/router_status.hpp"
#include "view/routes.hpp"

namespace cokv::serve {
namespace {

using namespace std::chrono_literals;

class router_backend final : public openai::backend {
 public:
  router_backend(cluster::remote_answers& answers, const cluster::worker_table& workers, const tokenizer& text,
                 std::uint32_t vocabulary)
      : answers_(answers), workers_(workers), text_(text), vocabulary_(vocabulary) {}

  std::vector<token_id> encode(std::string_view text, encode_options how) const override {
    return text_.encode(text, how);
  }
  // Of the workers that are here; while there is none, as it was.
  std::uint32_t context() const override {
    if (const auto now = workers_.max_sequence()) context_ = now;
    return context_;
  }
  std::uint32_t vocabulary() const override { return vocabulary_; }
  std::string token_bytes(token_id id) const override { return std::string(text_.token_bytes(id)); }
  result<std::unique_ptr<openai::answer>> submit(generation_request r) override {
    return answers_.submit(std::move(r));
  }
  result<std::unique_ptr<openai::answer>> submit_named(generation_request r, std::string name) override {
    return answers_.submit(std::move(r), std::move(name));
  }

 private:
  cluster::remote_answers& answers_;
  const cluster::worker_table& workers_;
  const tokenizer& text_;
  mutable std::uint32_t context_ = 0;
  std::uint32_t vocabulary_;
};

http::client_options client_of(const options& o) {
  http::client_options out;
  out.max_connections += o.max_requests;  // one for each answer, and some to give up with
  if (!o.worker_key_file.empty()) out.api_key = first_key("--worker-key-file", o.worker_key_file);
  return out;
}

// What a flag names, as members call it.
std::vector<std::string> urls_of(std::string_view flag, const std::vector<std::string>& list) {
  std::vector<std::string> out;
  for (auto& url : list) {
    const auto at = http::parse_server_url(url);
    if (!at) throw config_error(std::string(flag) + ": " + url + ": takes http://HOST:PORT or https://HOST:PORT");
    out.push_back(at->to_string());
  }
  return out;
}

struct named_workers {
  explicit named_workers(const options& o)
      : prefill(urls_of("--prefill", o.prefill)), decode(urls_of("--decode", o.decode)) {}
  std::vector<std::string> prefill, decode;
  std::string hopeless;  // why nothing comes of waiting for one of them

  // The flag that names it; empty: none does.
  std::string flag(const std::string& url) const {
    if (std::ranges::find(prefill, url) != prefill.end()) return "--prefill ";
    return std::ranges::find(decode, url) != decode.end() ? "--decode " : "";
  }
};

void tell(const cluster::worker_table::worker& w, cluster::worker_change c) {
  using cluster::worker_change;
  switch (c) {
    case worker_change::came:
      return spdlog::info("{}: here, for {}", w.url, to_string(w.facts.role));
    case worker_change::died:
      return spdlog::warn("{}: gone; what it had goes on elsewhere", w.url);
    case worker_change::replaced:
      return spdlog::warn("{}: another run of it is here; what the one before had goes on elsewhere", w.url);
    case worker_change::misfit:
      return spdlog::error("{}: gets nothing: {}", w.url, w.wrong);
    case worker_change::none:
      break;
  }
}

// Until there is one of each kind. Who was named and says what it must not is told at once: nothing comes of waiting.
awaitable<void> meet(const cluster::worker_table& table, const named_workers& named) {
  using cluster::worker_role;
  auto& time = clock::of(co_await asio::this_coro::executor);
  for (int tries = 0;; ++tries) {
    if (!named.hopeless.empty()) throw config_error(named.hopeless);
    for (const auto& [id, w] : table.all()) {
      const auto flag = named.flag(w.url);
      if (flag.empty() || w.state == cluster::presence::unheard) continue;
      if (w.state == cluster::presence::misfit) throw config_error(flag + w.url + ": " + w.wrong);
      const auto role = flag == "--prefill " ? worker_role::prefill : worker_role::decode;
      if (w.facts.role != role && w.facts.role != worker_role::both)
        throw config_error(flag + w.url + " is a worker for " + std::string(to_string(w.facts.role)));
    }
    const bool computes = table.usable(worker_role::prefill) > 0;
    if (computes && table.usable(worker_role::decode) > 0) co_return;
    if (tries % 100 == 20) spdlog::info("waiting for a worker that {}", computes ? "decodes" : "computes prompts");
    co_await time.async_wait_for(100ms, asio::deferred);
  }
}

// Whether only this machine reaches what listens there: a name may be anybody's, so the address counts.
bool is_local(const endpoint& listens) {
  error_code ec;
  const auto address = asio::ip::make_address(listens.host, ec);
  return listens.host.starts_with("unix:") || (!ec && address.is_loopback());
}

}  // namespace

awaitable<void> serve_router(const options& o, std::ostream& out) {
  const auto ex = co_await asio::this_coro::executor;
  http::metrics page;
  http::server server(ex, front_of(o, page));
  server.listen(o.listen);

  const auto config = load_config(o.model);
  auto text = tokenizer::load(o.model.dir);
  check_vocabulary(o.model, text, config);
  auto chat = chat_template::load(o.model.dir);
  named_workers named(o);
  const bool may_join = !o.api_key_file.empty() || is_local(server.local_endpoint());
  if (named.prefill.empty() && named.decode.empty() && !may_join)
    throw config_error(
        "--prefill, --decode: workers come by themselves only where keys are asked for (--api-key-file)");
  const auto life = random_id();
  reign mine(ex, life, o, client_of(o));
  cluster::members workers(
      ex, {.period = std::chrono::milliseconds(o.heartbeat), .dead_after = std::chrono::milliseconds(o.dead_after)},
      mine.calls(client_of(o)), cluster::kv_wire{config.layers, config.kv_heads, config.head_dim}, o.replicas,
      {.by = *cluster::parse_policy(o.policy),
       .ttft = std::chrono::milliseconds(o.slo_ttft),
       .tpot = std::chrono::milliseconds(o.slo_tpot)});
  for (auto* list : {&named.prefill, &named.decode})
    for (auto& url : *list) (void)workers.add(url);
  workers.stand_by();
  const bool stands_by = !o.standby_of.empty();
  // Its API is not there yet, which is not the same as not being there.
  bool answering = false;
  server.admit([&answering, stands_by](const http::exchange& x, time_point) -> std::optional<http::problem> {
    const auto& path = x.request().path;
    const bool of_the_api = path.starts_with("/v1/completions") || path.starts_with("/v1/chat/") ||
                            path.starts_with("/v1/models") || path == "/healthz";
    if (answering || !of_the_api) return {};
    return http::problem{http::status::service_unavailable,
                         stands_by ? "this router stands by for another one" : "this router waits for workers",
                         {},
                         "not_active"};
  });
  view::router_watch watch(ex);
  workers.on_change = [&watch](const cluster::worker_table::worker& w, cluster::worker_change c) {
    tell(w, c);
    watch.note(w, c);
  };
  workers.on_problem = [&named](const std::string& url, const std::string& what, bool lasting) {
    spdlog::info("{}: {}", url, what);
    if (const auto flag = named.flag(url); lasting && !flag.empty()) named.hopeless = flag + url + ": " + what;
  };
  cluster::remote_answers answers(ex, workers, {.prefix = life, .max_requests = o.max_requests});
  answers.on_change = [&watch](const cluster::answer_event& e) { watch.note(e); };
  router_backend backend(answers, workers.table(), text, config.vocab);
  std::optional<openai::service> api;
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(workers.run());
    cluster::route_members(server, workers, may_join);
    const auto describe = [&] {
      return view::router_status({.workers = workers.table(),
                                  .ring = workers.ring(),
                                  .sequences = answers.underway(view::most_sequences),
                                  .running = answers.requests(),
                                  .totals = {answers.prompts_moved(), answers.answers_moved(),
                                             answers.answers_resumed(), answers.computed_again()},
                                  .watch = watch},
                                 clock::of(ex).now());
    };
    view::route_view(server, describe, watch.events(), name_of(o));
    const auto begin = [&]() -> awaitable<void> {
      if (!stands_by) co_await meet(workers.table(), named);
      co_await mine.win(workers);
      group.spawn(mine.keep(workers));
      co_await meet(workers.table(), named);
      api.emplace(backend,
                  api_of(o, workers.table().fingerprint(), config.sampling, std::move(chat), clock::of(ex).wall_now()),
                  page);
      group.spawn(api->run());
      add_router_metrics(page, workers, answers);
      api->route(server);
      page.route(server);
      http::route_health(server);
      answering = true;
      spdlog::info("{}: {} workers compute prompts, {} decode, sequences up to {}", name_of(o),
                   workers.table().usable(cluster::worker_role::prefill),
                   workers.table().usable(cluster::worker_role::decode), backend.context());
    };
    // Those that come by themselves have to find it first: until then nothing but /v1/workers is here.
    const bool waits = !stands_by && (!named.prefill.empty() || !named.decode.empty());
    if (waits) co_await begin();
    auto served = co_await with(task_group{}, [&](task_group& serving) -> awaitable<void> {
      serving.spawn(answers.run());
      auto asked = co_await with(task_group{}, [&](task_group& first) -> awaitable<void> {
        if (!waits) first.spawn(begin());
        co_await http::serve_until_signalled(server, "cokv serve", out, std::chrono::seconds(o.grace),
                                             [&] { reload_front(server, o); });
        first.cancel();
      });
      if (asked.error() && asked.error() != asio::error::operation_aborted)
        throw boost::system::system_error(asked.error());
      if (api) api->close();
      answers.close();
    });
    workers.close();
    mine.close();
    if (served.error()) throw boost::system::system_error(served.error());
  });
  if (v.error()) throw boost::system::system_error(v.error());
}

}  // namespace cokv::serve

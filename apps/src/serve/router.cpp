#include "serve/router.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "cluster/members_routes.hpp"
#include "cluster/remote_answers.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"
#include "http/serve.hpp"
#include "serve/front.hpp"
#include "serve/router_metrics.hpp"

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
  if (o.worker_key_file.empty()) return out;
  std::ifstream in(o.worker_key_file);
  if (!std::getline(in, out.api_key) || out.api_key.empty())
    throw config_error("--worker-key-file: " + o.worker_key_file + ": no key in its first line");
  return out;
}

std::vector<std::string> urls_of(const options& o) {
  auto all = o.prefill;
  all.insert(all.end(), o.decode.begin(), o.decode.end());
  return all;
}

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
awaitable<void> meet(cluster::members& workers, const options& o, const model_config& config,
                     const std::string& hopeless) {
  using cluster::worker_role;
  auto& time = clock::of(co_await asio::this_coro::executor);
  const auto& table = workers.table();
  const auto named = [&](const std::string& url) {
    return std::ranges::find(o.prefill, url) != o.prefill.end() ? "--prefill " : "--decode ";
  };
  for (int tries = 0;; ++tries) {
    if (!hopeless.empty()) throw config_error("--prefill, --decode: " + hopeless);
    for (const auto& [id, w] : table.all()) {
      if (w.state == cluster::presence::misfit) throw config_error(named(w.url) + w.url + ": " + w.wrong);
      if (w.state != cluster::presence::here) continue;
      const auto& kv = w.facts.self.wire;
      if (kv.layers != config.layers || kv.kv_heads != config.kv_heads || kv.head_dim != config.head_dim)
        throw config_error("--model: " + o.model.dir + " is not the model of " + w.url);
      const auto is = [&](const std::vector<std::string>& list, worker_role role) {
        if (std::ranges::find(list, w.url) != list.end() && w.facts.role != role && w.facts.role != worker_role::both)
          throw config_error(named(w.url) + w.url + ": is a worker for " + std::string(to_string(w.facts.role)));
      };
      is(o.prefill, worker_role::prefill), is(o.decode, worker_role::decode);
    }
    if (table.usable(worker_role::prefill) > 0 && table.usable(worker_role::decode) > 0) co_return;
    if (tries % 100 == 50)
      spdlog::info("waiting for a worker that {}",
                   table.usable(worker_role::prefill) > 0 ? "decodes" : "computes prompts");
    co_await time.async_wait_for(100ms, asio::deferred);
  }
}

std::string some_prefix() {
  std::random_device source;
  return std::to_string(source()) + std::to_string(source());
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
  cluster::members workers(
      ex, {.period = std::chrono::milliseconds(o.heartbeat), .dead_after = std::chrono::milliseconds(o.dead_after)},
      client_of(o));
  for (auto& url : urls_of(o))
    if (workers.add(url))
      throw config_error("--prefill, --decode: " + url + ": takes http://HOST:PORT or https://HOST:PORT");
  workers.on_change = tell;
  std::string hopeless;  // of those that were named
  workers.on_problem = [&hopeless](const std::string& url, const std::string& what, bool lasting) {
    spdlog::info("{}: {}", url, what);
    if (lasting) hopeless = url + ": " + what;
  };
  cluster::remote_answers answers(ex, workers, {.prefix = some_prefix(), .max_requests = o.max_requests});
  router_backend backend(answers, workers.table(), text, config.vocab);
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(workers.run());
    co_await meet(workers, o, config, hopeless);
    const auto fingerprint = workers.table().fingerprint();
    openai::service api(backend, api_of(o, fingerprint, config.sampling, std::move(chat), clock::of(ex).wall_now()),
                        page);
    add_router_metrics(page, workers.table(), answers);
    api.route(server);
    cluster::route_members(server, workers);
    page.route(server);
    http::route_health(server);
    spdlog::info("{}: {} workers compute prompts, {} decode, sequences up to {}", name_of(o),
                 workers.table().usable(cluster::worker_role::prefill),
                 workers.table().usable(cluster::worker_role::decode), backend.context());
    auto served = co_await with(task_group{}, [&](task_group& serving) -> awaitable<void> {
      serving.spawn(answers.run());
      co_await http::serve_until_signalled(server, "cokv serve", out, std::chrono::seconds(o.grace),
                                           [&] { reload_front(server, o); });
      answers.close();
    });
    workers.close();
    if (served.error()) throw boost::system::system_error(served.error());
  });
  if (v.error()) throw boost::system::system_error(v.error());
}

}  // namespace cokv::serve

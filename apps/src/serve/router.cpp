#include "serve/router.hpp"

#include <spdlog/spdlog.h>

#include <fstream>
#include <random>

#include "cluster/remote_answers.hpp"
#include "cluster/worker_info.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"
#include "http/serve.hpp"
#include "serve/front.hpp"

namespace cokv::serve {
namespace {

using namespace std::chrono_literals;

class router_backend final : public openai::backend {
 public:
  router_backend(cluster::remote_answers& answers, const tokenizer& text, std::uint32_t context,
                 std::uint32_t vocabulary)
      : answers_(answers), text_(text), context_(context), vocabulary_(vocabulary) {}

  std::vector<token_id> encode(std::string_view text, encode_options how) const override {
    return text_.encode(text, how);
  }
  std::uint32_t context() const override { return context_; }
  std::uint32_t vocabulary() const override { return vocabulary_; }
  std::string token_bytes(token_id id) const override { return std::string(text_.token_bytes(id)); }
  result<std::unique_ptr<openai::answer>> submit(generation_request r) override {
    return answers_.submit(std::move(r));
  }

 private:
  cluster::remote_answers& answers_;
  const tokenizer& text_;
  std::uint32_t context_, vocabulary_;
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

http::client client_for(const asio::any_io_executor& ex, std::string_view flag, const std::string& url,
                        const http::client_options& how) {
  auto at = http::parse_server_url(url);
  if (!at) throw config_error(std::string(flag) + ": " + url + ": takes http://HOST:PORT or https://HOST:PORT");
  return http::client(ex, *at, how);
}

// When it is there. A worker that says what it must not is told at once: nothing will come of waiting.
awaitable<cluster::worker_facts> meet(http::client& worker, std::string flag, cluster::worker_role role) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  const auto url = worker.at().to_string();
  for (int tries = 0;; ++tries) {
    auto told = co_await worker.get("/v1/worker");
    if (told && told->code == 401) throw config_error("--worker-key-file: " + url + " does not know the key");
    if (told && told->code == 403) throw config_error("--worker-key-file: at " + url + " the key has no right admin");
    if (told && told->code == 404) throw config_error(flag + ": " + url + " is no worker (--role prefill or decode)");
    if (told && told->code == 200) {
      const auto v = http::parse_json(told->body);
      auto facts = v ? cluster::read_worker(*v) : cluster::parsed<cluster::worker_facts>(v.error());
      if (!facts) throw config_error(flag + ": " + url + " says what no worker says: " + facts.error().message);
      if (facts->role != role && facts->role != cluster::worker_role::both)
        throw config_error(flag + ": " + url + " is a worker for " + std::string(to_string(facts->role)));
      co_return *facts;
    }
    if (tries % 20 == 0)
      spdlog::info("waiting for {} {}: {}", flag, url,
                   told ? "status " + std::to_string(told->code) : told.error().message());
    co_await time.async_wait_for(500ms, asio::deferred);
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
  const auto how = client_of(o);
  auto prefill = client_for(ex, "--prefill", o.prefill, how), decode = client_for(ex, "--decode", o.decode, how);
  const auto first = co_await meet(prefill, "--prefill", cluster::worker_role::prefill);
  const auto second = co_await meet(decode, "--decode", cluster::worker_role::decode);
  if (first.self.fingerprint != second.self.fingerprint)
    throw config_error("--prefill and --decode: their weights are not the same");
  const auto& w = second.self.wire;
  if (w.layers != config.layers || w.kv_heads != config.kv_heads || w.head_dim != config.head_dim)
    throw config_error("--model: " + o.model.dir + " is not the model of the workers");
  if (first.self.wire != second.self.wire)
    throw config_error("--prefill and --decode: their KV differs (--dtype, --block-tokens)");

  cluster::remote_answers answers(
      ex, prefill, decode,
      {.prefix = some_prefix(), .fingerprint = second.self.fingerprint, .max_requests = o.max_requests});
  router_backend backend(answers, text, std::min(first.max_sequence, second.max_sequence), config.vocab);
  openai::service api(
      backend, api_of(o, second.self.fingerprint, config.sampling, std::move(chat), clock::of(ex).wall_now()), page);
  api.route(server);
  page.route(server);
  http::route_health(server);
  spdlog::info("{}: prompts at {}, answers at {}, sequences up to {}", name_of(o), prefill.at().to_string(),
               decode.at().to_string(), backend.context());
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(answers.run());
    co_await http::serve_until_signalled(server, "cokv serve", out, std::chrono::seconds(o.grace),
                                         [&] { reload_front(server, o); });
    answers.close();
  });
  prefill.close();
  decode.close();
  if (v.error()) throw boost::system::system_error(v.error());
}

}  // namespace cokv::serve

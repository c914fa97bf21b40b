#include "generate.hpp"

#include <algorithm>
#include <boost/json.hpp>

#include "checkpoint.hpp"
#include "cokv/engine/engine.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv {
namespace {

namespace json = boost::json;

double milliseconds(duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

struct outcome {
  std::vector<token_id> tokens;
  std::string text;
  error_code error;
  generation_report report;
};

awaitable<void> answer(engine& e, generation_request request, std::ostream* live, outcome& out) {
  auto submitted = e.submit(std::move(request));
  if (!submitted) {
    out.error = submitted.error();
    co_return;
  }
  auto g = std::move(*submitted);
  for (;;) {
    auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
    if (ec) {
      if (ec != asio::error::eof) out.error = ec;
      break;
    }
    out.tokens.push_back(piece.token);
    out.text += piece.text;
    if (live) *live << piece.text << std::flush;
  }
  out.report = g.report();
}

json::object to_json(const std::vector<token_id>& prompt, const outcome& o, duration load) {
  auto& r = o.report;
  return {{"prompt_tokens", json::value_from(prompt)},
          {"tokens", json::value_from(o.tokens)},
          {"text", o.text},
          {"finish_reason", r.reason == finish_reason::stop ? "stop" : "length"},
          {"timing",
           {{"load_ms", milliseconds(load)},
            {"queue_ms", milliseconds(r.queued)},
            {"ttft_ms", milliseconds(r.first)},
            {"tpot_ms", milliseconds(r.per_token)},
            {"total_ms", milliseconds(r.total)}}}};
}

}  // namespace

int generate(const generate_options& o, cli::streams io) {
  const auto type = parse_dtype(o.type);
  if (!type) throw config_error("--dtype: " + o.type + " is not bf16 or f32");
  if (o.prompt.empty()) throw config_error("--prompt: is empty");
  if (o.max_tokens == 0) throw config_error("--max-tokens: must be above 0");

  asio::io_context context(1);
  const auto ex = context.get_executor();
  auto& time = clock::of(ex);
  const auto start = time.now();
  auto where = open_device(ex, o.device, {.threads = o.threads});
  if (!where) throw config_error("--device: " + explain_device(o.device));
  const auto config = load_config(o.model);
  const auto words = tokenizer::load(o.model.dir);
  check_vocabulary(o.model, words, config);
  const auto what = load(o.model, {.compute = *type, .where = *where, .batch_invariant = o.batch_invariant});
  const auto loading = time.now() - start;

  generation_request request{.prompt = words.encode(o.prompt), .max_tokens = o.max_tokens};
  request.sampling = what->config().sampling;
  request.sampling.seed = o.seed;
  if (o.temperature) request.sampling.temperature = *o.temperature;
  if (o.top_k) request.sampling.top_k = *o.top_k;
  if (o.top_p) request.sampling.top_p = *o.top_p;
  if (auto wrong = check(request.sampling)) {  // "top_p: ..." is --top-p's
    std::replace(wrong->begin(), wrong->begin() + static_cast<std::ptrdiff_t>(wrong->find(':')), '_', '-');
    throw config_error("--" + *wrong);
  }
  const auto longest = what->config().max_positions;
  if (request.prompt.size() >= longest)
    throw config_error("--prompt: " + std::to_string(request.prompt.size()) +
                       " tokens leave no room for an answer in " + std::to_string(longest) + " positions");

  engine_options options;
  const auto most = std::min<std::uint64_t>(longest, request.prompt.size() + std::uint64_t{o.max_tokens});
  options.kv_blocks = static_cast<std::uint32_t>(most / options.block_tokens + 2);
  options.async_scheduling = o.async_scheduling;
  engine run(ex, *where, what, words, options);

  const auto prompt = request.prompt;
  outcome out;
  asio::co_spawn(context, answer(run, std::move(request), o.json ? nullptr : &io.out, out), asio::detached);
  context.run();
  if (out.error) throw std::runtime_error("generate: " + out.error.message());
  if (o.json)
    io.out << json::serialize(to_json(prompt, out, loading)) << '\n';
  else
    io.out << '\n';
  return 0;
}

}  // namespace cokv

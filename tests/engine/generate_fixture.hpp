// An engine over the bundled model, and answers collected from it.
#pragma once

#include <doctest/doctest.h>

#include <thread>

#include "cokv/engine/engine.hpp"
#include "engine/expected.hpp"

namespace cokv::test {

struct answer {
  std::vector<token_id> tokens;
  std::vector<token_logprobs> logprobs;  // where they were asked for
  std::string text;
  error_code ended;
  finish_reason reason = finish_reason::none;
  generation_report report;
};

inline awaitable<void> collect(generation g, answer& out) {
  for (;;) {
    auto [ec, piece] = co_await g.async_next(asio::as_tuple(asio::deferred));
    if (ec) {
      out.ended = ec;
      break;
    }
    out.tokens.push_back(piece.token);
    if (piece.logprobs) out.logprobs.push_back(*piece.logprobs);
    out.text += piece.text;
    out.reason = piece.reason;
  }
  out.report = g.report();
}

inline const tokenizer& words() {
  static const auto t = tokenizer::load(model_dir());
  return t;
}

struct fixture {
  explicit fixture(dtype type = dtype::f32, engine_options o = {}, std::shared_ptr<model> m = nullptr)
      : run(io.get_executor(), open_device(io.get_executor(), "cpu").value(), m ? m : tiny_model(type), words(),
            std::move(o)) {}

  std::vector<answer> all(std::vector<generation_request> requests) {
    std::vector<answer> out(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i)
      asio::co_spawn(io, collect(run.submit(std::move(requests[i])).value(), out[i]), asio::detached);
    io.restart();
    io.run();
    return out;
  }
  answer one(generation_request r) { return all({std::move(r)}).front(); }

  asio::io_context io{1};
  engine run;
};

// Its device fails once, in the middle of a step.
class failing_model final : public model {
 public:
  enum how { goes_on, waits };  // for the failure to be known, before the rest of the step is enqueued
  failing_model(std::shared_ptr<model> m, int steps, how h = goes_on) : inner_(std::move(m)), steps_(steps), how_(h) {}
  const model_config& config() const noexcept override { return inner_->config(); }
  dtype compute_type() const noexcept override { return inner_->compute_type(); }
  const id256& fingerprint() const noexcept override { return inner_->fingerprint(); }
  geometry kv_geometry(std::uint32_t block_tokens) const override { return inner_->kv_geometry(block_tokens); }
  error_code forward(std::uint32_t layer, const std::shared_ptr<batch>& step, const kv_pool& kv,
                     stream& compute) override {
    if (layer == 2 && steps_-- == 0) {
      auto ec = compute.launch("fault", [] { return error_code(errc::device_failed); });
      while (how_ == waits && !compute.status()) std::this_thread::yield();
      return ec;
    }
    return inner_->forward(layer, step, kv, compute);
  }
  error_code finish(const std::shared_ptr<batch>& step, stream& compute) override {
    return inner_->finish(step, compute);
  }

 private:
  std::shared_ptr<model> inner_;
  int steps_;
  how how_;
};

inline generation_request greedy(std::vector<token_id> prompt, std::uint32_t n) {
  return {.prompt = std::move(prompt), .max_tokens = n, .sampling = {.temperature = 0}};
}

inline std::vector<token_id> psalm() {
  return words().encode(
      "The LORD is my shepherd; I shall not want. He maketh me to lie down in green pastures: he leadeth me beside the "
      "still waters. He restoreth my soul: he leadeth me in the paths of righteousness for his name's sake.");
}

}  // namespace cokv::test

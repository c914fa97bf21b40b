#include "fit/pipeline.hpp"

#include <boost/asio/ip/tcp.hpp>

#include "cluster/rank_links.hpp"
#include "cokv/engine/engine.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "fit/merged.hpp"
#include "fit/meter.hpp"
#include "http/server.hpp"
#include "openai/engine_backend.hpp"
#include "openai/service.hpp"

namespace cokv::fit {
namespace {

using namespace std::chrono_literals;

constexpr auto patience = 1min;

topology split_of(const stage_place& at) { return topology(static_cast<std::uint32_t>(at.urls.size())); }

// A worker's door and its part of the model.
struct stage_parts {
  stage_parts(const asio::any_io_executor& ex, const options& o, device where, const stage_place& at)
      : windows(ex),
        links(
            windows,
            {.split = split_of(at), .self = at.stage, .urls = at.urls, .greeting = {.topology = split_of(at).text()}}) {
    if (auto ec = links.listen(at.urls[at.stage]))
      throw config_error("--workers: " + at.urls[at.stage] + ": " + ec.message());
    const auto split = split_of(at);
    what =
        load(o.model,
             {.compute = *parse_dtype(o.dtype), .where = where, .part = {.split = split, .who = split.at(at.stage)}});
  }

  window_table windows;
  cluster::rank_links links;
  std::shared_ptr<model> what;
};

[[noreturn]] void one_has_ended() { throw config_error("--workers: one of them has ended"); }

void throw_unless_ended(error_code ec) {
  if (ec && ec != asio::error::operation_aborted) throw config_error("--workers: " + ec.message());
}

awaitable<void> join_all(engine& leads, stage_parts& mine) {
  auto met = co_await with_deadline(mine.links.gather(leads.sizes(), mine.what->names()), patience);
  if (!met) one_has_ended();
  if (auto ec = leads.join(std::move(met->links))) throw config_error("--workers: " + ec.message());
}

}  // namespace

std::vector<std::string> free_doors(std::size_t count) {
  asio::io_context context(1);
  std::vector<asio::ip::tcp::acceptor> all;  // open until each has another's port
  std::vector<std::string> urls;
  try {
    for (std::size_t i = 0; i < count; ++i) {
      all.emplace_back(context, asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), 0), false);
      urls.push_back("tcp://127.0.0.1:" + std::to_string(all.back().local_endpoint().port()));
    }
  } catch (const boost::system::system_error& e) {
    throw config_error("--workers: no door for one: " + e.code().message());
  }
  return urls;
}

awaitable<double> engine_gap(engine& e, std::uint32_t sequences, std::uint32_t tokens) {
  auto& time = clock::of(e.get_executor());
  std::vector<generation> all;
  for (std::uint32_t i = 0; i < sequences; ++i)
    all.push_back(e.submit({.prompt = {static_cast<token_id>(i % e.running().config().vocab)},
                            .max_tokens = tokens,
                            .sampling = {.temperature = 0},
                            .ignore_end_tokens = true})
                      .value());
  std::vector<double> gaps;
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    for (std::size_t i = 0; i < all.size(); ++i)
      group.spawn([&, i]() -> awaitable<void> {
        auto before = time.now();
        for (std::size_t n = 0;; ++n) {
          const auto piece = co_await all[i].async_next(as_result);
          if (piece.error() == asio::error::eof) break;
          if (!piece) throw boost::system::system_error(piece.error());
          const auto now = time.now();
          if (i == 0 && n > 4) gaps.push_back(std::chrono::duration<double>(now - before).count());
          before = now;
        }
      });
  });
  if (!v) throw boost::system::system_error(v.error());
  co_return mean_of(gaps);
}

awaitable<void> be_stage(const options& o, device where, stage_place at, std::function<void()> ready) {
  const auto ex = co_await asio::this_coro::executor;
  stage_parts mine(ex, o, where, at);
  ready();
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(mine.links.run());
    for (bool computed = false; !computed;) {
      auto told = co_await mine.links.summoned(mine.what->own_stage());
      if (!told) break;
      stage_worker works(ex, where, mine.what, told->sizes, memory_kind::device, mine.windows);
      (void)co_await works.run(std::move(told->links));
      computed = works.steps() != 0;  // else not all were there, and they are called together again
    }
    group.cancel();
  });
  throw_unless_ended(v.error());
}

struct pipeline_lead::parts : stage_parts {
  using stage_parts::stage_parts;
};

pipeline_lead::pipeline_lead(const asio::any_io_executor& ex, const options& o, device where,
                             std::vector<std::string> urls)
    : where_(where), text_(tokenizer::load(o.model.dir)), stages_(static_cast<std::uint32_t>(urls.size())) {
  parts_ = std::make_unique<parts>(ex, o, where_, stage_place{.urls = std::move(urls)});
}

pipeline_lead::~pipeline_lead() = default;

awaitable<pipeline_times> pipeline_lead::times(std::uint32_t prompt, std::uint32_t answer, const asker& ask) {
  constexpr int prompts = 5;
  auto& mine = *parts_;
  const auto ex = co_await asio::this_coro::executor;
  const auto longest = std::max(prompt, answer);
  engine leads(ex, where_, mine.what, text_,
               {.kv_blocks = stages_ * (longest / meter::block_tokens + 2),
                .max_batched_tokens = longest,
                .max_sequence = longest + 2,
                .prefix_cache = false});
  http::metrics page;
  http::server server(ex, {.observe = page.observer()});
  server.listen({"127.0.0.1", 0}, "--workers");
  openai::engine_backend backend(leads, text_);
  openai::service api(backend, {.id = std::string(served_name)}, page);
  api.route(server);
  question q{.port = server.local_endpoint().port, .vocabulary = mine.what->config().vocab};
  pipeline_times out;
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(mine.links.run());
    co_await join_all(leads, mine);
    group.spawn(server.run());
    q.prompt = 1, q.answer = answer;
    for (q.sequences = 1; q.sequences <= stages_; ++q.sequences) out.gaps.push_back((co_await ask(q)).token);
    q.sequences = 1, q.prompt = prompt, q.answer = 1;
    std::vector<double> firsts;
    for (int i = 0; i < prompts; ++i) {
      co_await clock::of(ex).async_wait_for(first_pause);
      firsts.push_back((co_await ask(q)).first);
    }
    out.first = middle_of(std::move(firsts));
    co_await leads.async_drain();
    group.cancel();
  });
  throw_unless_ended(v.error());
  co_return out;
}

}  // namespace cokv::fit

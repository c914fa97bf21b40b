#include "serve/parts.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::serve {
namespace {

using namespace std::chrono_literals;

// A process's place in the job that mpirun started, as OpenMPI tells it.
struct job {
  std::uint32_t rank = 0, size = 0;
};

std::optional<std::uint32_t> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return std::nullopt;
  std::uint32_t n = 0;
  const std::string_view all(text);
  const auto [end, ec] = std::from_chars(all.data(), all.data() + all.size(), n);
  return ec == std::errc() && end == all.data() + all.size() ? std::optional(n) : std::nullopt;
}

std::optional<job> this_job() {
  const auto rank = number_in("OMPI_COMM_WORLD_RANK"), size = number_in("OMPI_COMM_WORLD_SIZE");
  if (!rank || !size) return std::nullopt;
  return job{*rank, *size};
}

std::string shape_text(const options& o) {
  return "--pipeline " + std::to_string(o.pipeline) + " --tensor " + std::to_string(o.tensor);
}

// What all of them have to be told alike.
link_options greeting_of(const options& o, const topology& split) {
  link_options out;
  out.topology = split.text() + '/' + o.dtype + (o.batch_invariant ? "/invariant" : "");
  out.silence = 5s;
  return out;
}

// All ranks of the job come here, and wait for each other.
std::shared_ptr<mpi_group> sums_of(const asio::any_io_executor& ex, const part_choice& mine) {
  if (mine.part.alone() || !mine.urls[0].starts_with("mpi://")) return nullptr;
  auto made = mpi_group::split(ex, mine.part.who.stage);
  if (!made) throw config_error("--ranks mpi://: " + made.error().message());
  if ((*made)->size() != mine.part.split.degree() || (*made)->rank() != mine.part.who.rank)
    throw config_error("--ranks mpi://: this mpirun's ranks are not numbered as OMPI_COMM_WORLD_RANK says");
  return *made;
}

cluster::rank_options rank_options_of(const asio::any_io_executor& ex, const options& o, const part_choice& mine) {
  return {.split = mine.part.split,
          .self = mine.number,
          .urls = mine.urls,
          .greeting = greeting_of(o, mine.part.split),
          .sums = sums_of(ex, mine)};
}

void open_door(cluster::rank_links& links, const part_choice& mine) {
  const auto& url = mine.urls[mine.number];
  if (auto ec = links.listen(url.starts_with("mpi://") ? "mpi://" : url))
    throw config_error("--ranks: " + url + ": " + ec.message());
}

topology split_of(const options& o) {
  if (!o.stage_starts.empty() && o.stage_starts.size() != o.pipeline)
    throw config_error("--stage-starts: " + std::to_string(o.stage_starts.size()) + " layers for " +
                       std::to_string(o.pipeline) + " stages");
  return topology(o.pipeline, o.tensor, 0, o.stage_starts);
}

}  // namespace

part_choice choose_part(const options& o) {
  const auto split = split_of(o);
  const auto workers = split.workers();
  const bool of_a_job = std::ranges::all_of(o.ranks, [](auto& url) { return url.starts_with("mpi://"); });
  part_choice out;
  if (of_a_job) {
    const auto here = this_job();
    if (!here)
      throw config_error("--ranks: " + shape_text(o) + " takes the URLs of " + std::to_string(workers) +
                         " workers, or mpirun -n " + std::to_string(workers));
    if (here->size != workers)
      throw config_error(shape_text(o) + " takes " + std::to_string(workers) + " workers, and this mpirun has " +
                         std::to_string(here->size) + ": mpirun -n " + std::to_string(workers));
    out.number = here->rank;
    for (std::uint32_t n = 0; n < workers; ++n) out.urls.push_back("mpi://" + std::to_string(n));
  } else {
    if (o.ranks.size() != workers)
      throw config_error("--ranks: " + std::to_string(o.ranks.size()) + " URLs; " + shape_text(o) + " takes " +
                         std::to_string(workers));
    if (o.rank >= workers)
      throw config_error("--rank: " + std::to_string(o.rank) + " is none of 0 to " + std::to_string(workers - 1));
    out.number = o.rank;
    out.urls = o.ranks;
  }
  out.part = {split, split.at(out.number)};
  return out;
}

std::string describe(const part_choice& c, const model_config& whole) {
  const auto layers = c.part.split.layers(whole.layers, c.part.who.stage);
  return c.part.split.text() + " worker " + std::to_string(c.number) + " (stage " + std::to_string(c.part.who.stage) +
         ", rank " + std::to_string(c.part.who.rank) + "): layers " + std::to_string(layers.first) + " to " +
         std::to_string(layers.end() - 1) + ", " + std::to_string(whole.heads / c.part.split.degree()) + " of " +
         std::to_string(whole.heads) + " heads";
}

leading::leading(const asio::any_io_executor& ex, const options& o, const part_choice& mine)
    : split_(mine.part.split.text()), links_(window_table(ex), rank_options_of(ex, o, mine)), lost_(ex) {
  open_door(links_, mine);
}

void leading::lost(error_code why) {
  spdlog::warn("a worker of {} is lost: {}; its requests failed, and more are refused until all are there", split_,
               why.message());
  lost_.tell();
}

awaitable<void> leading::run(engine& leads) {
  auto& time = clock::of(leads.get_executor());
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(links_.run());
    for (;;) {
      auto links = co_await links_.gather(leads.sizes(), leads.running().fingerprint());
      if (!links) break;
      error_code ec;
      while ((ec = leads.join(*links)) == errc::in_use) co_await time.async_wait_for(1ms, asio::deferred);
      if (ec) throw boost::system::system_error(ec, "the workers of " + split_);
      links = errc::closed;  // the engine's alone
      spdlog::info("{}: all workers are there", split_);
      co_await lost_.async_wait(asio::deferred);
    }
    group.cancel();
  });
  if (v.error() && v.error() != asio::error::operation_aborted) throw boost::system::system_error(v.error());
}

awaitable<void> serve_part(const options& o, std::ostream& out, part_choice mine, device where,
                           std::function<std::shared_ptr<model>()> load) {
  const auto ex = co_await asio::this_coro::executor;
  asio::signal_set signals(ex, SIGINT, SIGTERM);  // before the line that tells others to go ahead
  cluster::rank_links links(window_table(ex), rank_options_of(ex, o, mine));
  open_door(links, mine);
  const auto what = load();
  out << "cokv serve: worker " << mine.number << " of " << mine.part.split.text() << " is at " << mine.urls[mine.number]
      << std::endl;
  std::unique_ptr<stage_worker> works;
  bool computing = false, ending = false;
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(links.run());
    group.spawn([&]() -> awaitable<void> {
      co_await signals.async_wait(asio::use_awaitable);
      ending = true;
      // All of an mpirun's processes are told at once: the leader's answers in flight need this one until they are over.
      if (computing) {
        spdlog::info("worker {} of {}: it computes until the leader ends", mine.number, mine.part.split.text());
        (void)co_await with_deadline(signals.async_wait(asio::use_awaitable), std::chrono::seconds(o.grace));
      }
      group.cancel();
    });
    for (;;) {
      auto told = co_await links.summoned(what->fingerprint());
      if (!told) break;
      if (!works || works->sizes() != told->sizes) {
        works.reset();
        works = std::make_unique<stage_worker>(ex, where, what, told->sizes);
      }
      spdlog::info("worker {} of {}: all are there; {} KV blocks of {} tokens", mine.number, mine.part.split.text(),
                   told->sizes.kv_blocks, told->sizes.block_tokens);
      computing = true;
      const auto why = co_await works->run(std::move(told->links));
      computing = false;
      if (ending) break;
      spdlog::warn("worker {} of {}: {}; it waits for the leader", mine.number, mine.part.split.text(), why.message());
    }
    group.cancel();
  });
  if (v.error() && v.error() != asio::error::operation_aborted) throw boost::system::system_error(v.error());
}

}  // namespace cokv::serve

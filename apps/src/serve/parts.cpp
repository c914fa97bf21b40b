#include "serve/parts.hpp"

#include <spdlog/spdlog.h>

#include <unistd.h>

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "cluster/part_mover.hpp"
#include "cluster/wire_of.hpp"
#include "cokv/runtime/compute.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "random_id.hpp"
#include "serve/conversion.hpp"
#include "serve/doors.hpp"

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

bool on_several_machines() {
  const auto here = number_in("OMPI_COMM_WORLD_LOCAL_SIZE"), all = number_in("OMPI_COMM_WORLD_SIZE");
  return here && all && *here < *all;
}

std::string this_machine() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string shape_text(const options& o) {
  return "--pipeline " + std::to_string(o.pipeline) + " --tensor " + std::to_string(o.tensor);
}

// What all of them have to be told alike.
link_options greeting_of(const options& o, const topology& split) {
  link_options out;
  out.topology = split.text() + '/' + o.dtype + (o.batch_invariant ? "/invariant" : "");
  if (o.role != "both") out.topology += '/' + o.role + (o.convert_kv ? "/converts" : "");
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
          .seat = mine.seat,
          .greeting = greeting_of(o, mine.part.split),
          .sums = sums_of(ex, mine),
          .kv = o.role != "both"};
}

void open_door(cluster::rank_links& links, const part_choice& mine) {
  const auto& url = mine.urls[mine.seat];
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
    const auto seats = workers + o.spares.size();
    if (o.rank >= seats)
      throw config_error("--rank: " + std::to_string(o.rank) + " is none of 0 to " + std::to_string(seats - 1));
    out.number = o.rank;
    out.urls = o.ranks;
    out.urls.insert(out.urls.end(), o.spares.begin(), o.spares.end());
    if (std::ranges::any_of(o.spares, [](auto& url) { return url.starts_with("mpi://"); }))
      throw config_error("--spares: an mpirun has none");
  }
  out.seat = out.number;
  out.part.split = split;
  if (!out.spare()) out.part.who = split.at(out.number);
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
    : split_(mine.part.split.text()),
      copies_(o.replicas > 0 ? o.replica_memory : 0),
      rejoin_within_(std::chrono::seconds(o.rejoin_within)),
      windows_(ex),
      links_(windows_, rank_options_of(ex, o, mine)),
      others_(ex, mine.part.split.workers()),
      lost_(ex) {
  open_door(links_, mine);
}

void leading::lost(error_code why) {
  spdlog::warn("a worker of {} is lost: {}; its requests {}, and more are refused until all are there", split_,
               why.message(), copies_ > 0 ? "wait, but for prompts whose KV was on its way" : "failed");
  lost_.tell();
}

std::optional<stage_copies> leading::copies() const {
  if (copies_ == 0) return std::nullopt;
  return stage_copies{windows_, copies_, random_number()};
}

// Whoever waits is not kept waiting for ever.
awaitable<result<cluster::gathered>> leading::gather(engine& leads) {
  result<cluster::gathered> met = errc::closed;
  cluster::rank_links::planner recover;
  if (copies_ > 0) recover = [&leads](std::vector<stage_holding> said) { return leads.recover(std::move(said)); };
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      co_await clock::of(leads.get_executor()).async_wait_for(rejoin_within_, asio::deferred);
      leads.give_up_ranks(errc::unavailable);
    });
    met = co_await links_.gather(leads.sizes(), leads.running().names(), recover);
    group.cancel();
  });
  if (v.error() && v.error() != asio::error::operation_aborted) throw boost::system::system_error(v.error());
  co_return met;
}

// What the others can't be told to move they don't move: the engine goes by that as by the loss of a worker.
awaitable<void> leading::move_kv(std::vector<peer_link> links, peer_link one_of_the_engine) {
  co_await others_.run(std::move(links), [&one_of_the_engine] { one_of_the_engine.close(); });
}

awaitable<void> leading::run(engine& leads) {
  auto& time = clock::of(leads.get_executor());
  std::uint64_t recoveries = 0, again = 0;
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(links_.run());
    for (;;) {
      auto met = co_await gather(leads);
      if (!met) break;
      auto joined = co_await with(task_group{}, [&](task_group& together) -> awaitable<void> {
        if (!met->kv.empty()) together.spawn(move_kv(std::exchange(met->kv, {}), met->links.workers[1]));
        error_code ec;
        while ((ec = leads.join(met->links, met->how)) == errc::in_use)
          co_await time.async_wait_for(1ms, asio::deferred);
        if (ec) throw boost::system::system_error(ec, "the workers of " + split_);
        met->links = {};  // the engine's alone
        const auto c = leads.counters();
        if (c.recoveries > recoveries)
          spdlog::info("{}: all workers are there; requests go on, {} tokens are computed again", split_,
                       c.recomputed_tokens - again);
        else
          spdlog::info("{}: all workers are there", split_);
        recoveries = c.recoveries, again = c.recomputed_tokens;
        co_await lost_.async_wait(asio::deferred);
        together.cancel();
      });
      if (joined.error()) throw boost::system::system_error(joined.error(), "the workers of " + split_);
    }
    group.cancel();
  });
  if (v.error() && v.error() != asio::error::operation_aborted) throw boost::system::system_error(v.error());
}

namespace {

// What moves the KV of a worker that has no engine.
struct part_of_kv {
  part_of_kv(const asio::any_io_executor& ex, const options& o, const part_choice& mine, device where)
      : life(random_id()),
        convert(converters_of(where, o)),
        all(window_table(ex), cluster::greeting_of(nobodys(life), o.role, life), how(o)) {
    if (o.role == "decode" || !o.links.empty()) open_doors(all.door(), o, host_of(o, mine), life);
  }

  // Until the leader says what all of the model is called, nobody's links are let in.
  static id256 nobodys(std::string_view life) {
    sha256 h;
    h.update(life);
    return h.finish();
  }
  // Where it is found by its fellows. Of an mpirun over several machines, by this one's name.
  static std::string host_of(const options& o, const part_choice& mine) {
    const auto& url = mine.urls[mine.seat];
    const auto begins = url.find("://"), ends = url.rfind(':');
    if (url.starts_with("mpi://") && on_several_machines()) return this_machine();
    if (!url.starts_with("tcp://") && !url.starts_with("ucx://")) return o.listen.host;
    auto host = url.substr(begins + 3, ends - begins - 3);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    return host;
  }
  cluster::mover_options how(const options& o) {
    return {.life = life,
            .links = [this, &o] { return advertised(all.door(), o); },
            .convert = convert.get(),
            .converts = o.convert_kv};
  }

  std::string life;
  std::unique_ptr<cluster::converters> convert;
  cluster::part_mover all;
};

// What ends first ends the other too; why.
awaitable<void> ends(awaitable<error_code> what, error_code& why, task_group& both) {
  const auto ec = co_await std::move(what);
  if (!why) why = ec;
  both.cancel();
}

// Until one of its links ends. Then nothing computes or moves KV any more.
awaitable<error_code> work(stage_worker& works, cluster::summons& with_these, cluster::part_mover* moves) {
  if (!moves) co_return co_await works.run(std::move(with_these.links), std::move(with_these.how));
  error_code why;
  (void)co_await with(task_group{}, [&](task_group& group) {
    group.spawn(ends(moves->run(works, std::move(with_these.kv)), why, group));
    group.spawn(ends(works.run(std::move(with_these.links), std::move(with_these.how)), why, group));
  });
  co_return why ? why : make_error_code(errc::closed);
}

}  // namespace

awaitable<bool> wait_as_spare(const options& o, std::ostream& out, part_choice& mine, peer_link& held) {
  const auto ex = co_await asio::this_coro::executor;
  asio::signal_set signals(ex, SIGINT, SIGTERM);
  cluster::rank_links links(window_table(ex), rank_options_of(ex, o, mine));
  out << "cokv serve: a spare of " << mine.part.split.text() << " for " << mine.urls[mine.seat] << std::endl;
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      co_await signals.async_wait(asio::use_awaitable);
      group.cancel();
    });
    if (auto taken = co_await links.recruited()) {
      mine.number = taken->number;
      mine.part.who = mine.part.split.at(taken->number);
      held = std::move(taken->with_leader);
    }
    group.cancel();
  });
  co_return !mine.spare();
}

awaitable<void> serve_part(const options& o, std::ostream& out, part_choice mine, device where,
                           std::function<std::shared_ptr<model>()> load, peer_link held) {
  const auto ex = co_await asio::this_coro::executor;
  asio::signal_set signals(ex, SIGINT, SIGTERM);  // before the line that tells others to go ahead
  const window_table windows(ex);
  cluster::rank_links links(windows, rank_options_of(ex, o, mine));
  open_door(links, mine);
  const auto what = co_await on(where, load);  // who waits for it hears that it lives
  out << "cokv serve: worker " << mine.number << " of " << mine.part.split.text() << " is at " << mine.urls[mine.seat]
      << std::endl;
  std::unique_ptr<stage_worker> works;
  std::optional<part_of_kv> moves;
  if (o.role != "both") moves.emplace(ex, o, mine, where);
  bool computing = false, ending = false;
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(links.run());
    if (moves) group.spawn(moves->all.door().run());
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
      auto told = co_await links.summoned(what->own_stage(), [&works](const stage_sizes& sizes) {
        return works && works->sizes() == sizes ? works->holding() : stage_holding();
      });
      if (!told) break;
      held = {};
      if (moves) moves->all.set_namespace(cluster::links_of(told->fingerprint));
      if (!works || works->sizes() != told->sizes) {
        works.reset();
        works = std::make_unique<stage_worker>(ex, where, what, told->sizes, kv_memory_of(o), windows);
      }
      spdlog::info("worker {} of {}: all are there; {} KV blocks of {} tokens", mine.number, mine.part.split.text(),
                   told->sizes.kv_blocks, told->sizes.block_tokens);
      computing = true;
      const auto why = co_await work(*works, *told, moves ? &moves->all : nullptr);
      computing = false;
      if (ending) break;
      spdlog::warn("worker {} of {}: {}; it waits for the leader", mine.number, mine.part.split.text(), why.message());
    }
    group.cancel();
  });
  if (v.error() && v.error() != asio::error::operation_aborted) throw boost::system::system_error(v.error());
}

}  // namespace cokv::serve

// How close does a link over MPI come to the loop of MPI_Isend and MPI_Irecv that one would write by hand? Chunks of
// 4 KiB to 16 MiB go from rank 0 to rank 1, from a working set beyond the cache into another; both sides of a ratio take
// turns in one run. The loop has as much under way, and is answered once, at its end; a put is answered by itself, when it
// is visible. Processor seconds are of both processes.
//
//     mpirun -n 2 bench_links_mpi [--bytes 256MiB] [--set 64MiB] [--repeat 7] [--connections 1]
//         [--from 4KiB] [--to 16MiB] [--json FILE]
#include <unistd.h>

#include <optional>

#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "link/mpi/mpi_api.hpp"
#include "link_table.hpp"
#include "words.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

detail::mpi_api mpi;
int rank = 0;

// The loop by hand: a message a chunk, 8 MiB of them under way, 16 at least and 128 at most.
void raw_loop(const link_settings& s, const buffer& memory, std::size_t chunk) {
  std::vector<MPI_Request> under_way(std::clamp<std::size_t>((8 << 20) / chunk, 16, 128), mpi.no_request);
  const int n = static_cast<int>(chunk);
  std::size_t next = 0;
  for (std::size_t moved = 0; moved < s.bytes; moved += chunk, next = (next + 1) % under_way.size()) {
    auto& r = under_way[next];
    MPI_Status status;
    for (int done = 0; !done;) mpi.Test(&r, &done, &status);
    auto* at = memory.data() + moved % memory.size();
    must((rank == 0 ? mpi.Isend(at, n, mpi.byte, 1, 1, mpi.world, &r)
                    : mpi.Irecv(at, n, mpi.byte, 0, 1, mpi.world, &r)) == MPI_SUCCESS,
         "MPI");
  }
  MPI_Status status;
  for (auto& r : under_way)
    for (int done = 0; !done;) mpi.Test(&r, &done, &status);
  // The receiver has all of it.
  MPI_Request r = nullptr;
  must((rank == 1 ? mpi.Isend(nullptr, 0, mpi.byte, 0, 2, mpi.world, &r)
                  : mpi.Irecv(nullptr, 0, mpi.byte, 1, 2, mpi.world, &r)) == MPI_SUCCESS,
       "MPI");
  for (int done = 0; !done;) mpi.Test(&r, &done, &status);
}

awaitable<peer_link> join(window_table windows, link_listener& door, link_options o) {
  if (rank == 1) co_return co_await door.async_accept();
  for (;;) {
    auto link = co_await async_connect(windows, "mpi://1", o, as_result);
    if (link) co_return std::move(*link);
    must(link.error() == errc::unavailable, "connecting");  // it does not listen yet
  }
}

awaitable<void> compare(link_settings s, std::uint32_t connections) {
  auto ex = co_await asio::this_coro::executor;
  window_table windows(ex);
  auto memory = buffer::host(s.set);
  if (rank == 0) fill(memory);
  // Doors one after the other: a rank has one.
  std::optional<peer_link> off, on;
  for (auto [digest, link] : {std::pair(digest_algorithm::none, &off), std::pair(digest_algorithm::xxh3_64, &on)}) {
    const link_options o{.digest = digest,
                         .connections = connections,
                         .greeting = std::chrono::seconds(30),
                         .silence = std::chrono::minutes(5)};
    link_listener door;
    if (rank == 1) door = link_listener::listen(windows, "mpi://", o).value();
    link->emplace(co_await join(windows, door, o));
    if (rank == 1)
      co_await hear<bool>(**link);  // accepted at the other side, too, before the door closes
    else
      co_await say(**link, true);
  }
  window landing;
  window_ref to;
  link_table table("mpi", "chunk", {{"raw", "Isend and Irecv", true}, {"link", "link"}, {"digest", "with digests"}});
  if (rank == 1) {
    landing = windows.expose({memory}, window_access::put).value();
    co_await say(*off, landing.ref());
    co_await say(*off, ::getpid());
  } else {
    to = co_await hear<window_ref>(*off);
    count_process(co_await hear<pid_t>(*off));
    std::printf("mpi between two processes, %s a run, medians of %d\n\n", format_size(s.bytes).c_str(), s.repeat);
    table.heading();
  }
  for (auto chunk : s.chunks()) {
    for (int r = 0; r < s.repeat; ++r) {
      // Who takes what comes waits for nothing else meanwhile: a timer of its own costs as much as a message.
      if (rank == 1) {
        co_await hear<bool>(*off);
        raw_loop(s, memory, chunk);
        continue;
      }
      co_await say(*off, true);
      // It is on its way when the loop has had its turn.
      co_await clock::of(co_await asio::this_coro::executor).async_wait_for(std::chrono::milliseconds(1));
      std::vector<throughput> round{timed(s.bytes, [&] { raw_loop(s, memory, chunk); })};
      for (auto* link : {&off, &on}) {
        stopwatch watch;
        co_await put_all((*link)->to(to), memory, s.bytes, chunk);
        round.push_back(watch.over(s.bytes));
      }
      table.add(std::move(round));
    }
    if (rank == 0) table.row(chunk);
  }
  if (rank == 0) {
    off->close();
    on->close();
  }
  co_await off->async_closed();
  co_await on->async_closed();
  if (rank == 0) table.write(s.json);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How close does a link over MPI come to a hand-written loop of MPI_Isend and MPI_Irecv?"};
  link_settings s;
  std::uint32_t connections = 1;
  s.add_to(app);
  app.add_option("--connections", connections, "of the link")->check(CLI::Range(1, 64));
  CLI11_PARSE(app, argc, argv);

  auto loaded = detail::mpi_api::load("libmpi.so.40");
  must(loaded.has_value(), "loading OpenMPI");
  mpi = *loaded;
  int level = 0, ranks = 0;
  must(mpi.Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level) == MPI_SUCCESS, "MPI_Init_thread");
  mpi.Comm_rank(mpi.world, &rank);
  mpi.Comm_size(mpi.world, &ranks);
  must(ranks == 2, "two ranks: mpirun -n 2; that");
  {
    asio::io_context context(1);
    asio::co_spawn(context, compare(s, connections), [](std::exception_ptr e) {
      if (e) std::rethrow_exception(e);
    });
    cokv::run(context);
  }
  mpi.Finalize();
}

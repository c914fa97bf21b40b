// How fast does KV get into another process's memory on the same GPU? The peer's window of exportable memory is opened by
// its CUDA IPC handle, and extents of 4 KiB to 16 MiB that lie scattered in it are put and got, a layer's KV a transfer;
// beside it, in the same run, a cudaMemcpyAsync for each extent by hand into the same memory, mapped by hand. Processor
// seconds are of both processes.
//
//     bench_links_ipc [--device cuda:0] [--bytes 4GiB] [--set 512MiB] [--transfer 32MiB] [--chunk 32MiB] [--json FILE]
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "link_table.hpp"
#include "spin_kernel.hpp"
#include "words.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

struct ipc_settings : link_settings {
  std::string device = "cuda:0";
  std::size_t transfer = 32 << 20, chunk = link_options().device_chunk;

  link_options link() const { return {.device_chunk = chunk}; }
  std::size_t windows() const { return chunks().size(); }
};

constexpr std::size_t most_windows = 16;
struct told {
  bool ready = false;
  std::array<std::byte, 64> handle{};
  std::size_t offset = 0, whole = 0;
  window_ref windows[most_windows];  // the same memory, in extents of each size
};

[[noreturn]] void receiver(const ipc_settings& s, const std::string& at, int to) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  asio::io_context context(1);
  told out;
  auto d = open_device(context.get_executor(), s.device);
  if (d) {
    window_table windows(context.get_executor());
    must(!windows.stage(*d), "staging");
    auto door = link_listener::listen(windows, at, s.link()).value();
    auto memory = d->allocate(s.set, memory_kind::exportable).value();
    auto handle = d->export_memory(memory).value();
    out.ready = true;
    out.handle = handle.ipc, out.offset = handle.offset, out.whole = handle.whole;
    std::vector<window> open;
    for (auto extent : s.chunks()) {
      open.push_back(windows.expose(scattered(memory, extent), window_access::both).value());
      out.windows[open.size() - 1] = open.back().ref();
    }
    must(::write(to, &out, sizeof out) == sizeof out, "a pipe");
    peer_link link;
    door.async_accept([&](error_code, peer_link l) { link = std::move(l); });
    auto running = asio::make_work_guard(context);
    cokv::run(context);
  }
  must(::write(to, &out, sizeof out) == sizeof out, "a pipe");
  std::_Exit(0);
}

// Extent by extent, round and round.
std::vector<copy_op> copies(const buffer& mine, const std::vector<buffer>& theirs, std::size_t bytes, bool put) {
  std::vector<copy_op> out;
  const auto extent = theirs.front().size();
  for (std::size_t done = 0; done < bytes; done += extent) {
    const auto at = done % mine.size();
    const auto here = mine.slice(at, extent), there = theirs[at / extent];
    out.push_back(put ? copy_op{there, here} : copy_op{here, there});
  }
  return out;
}

// All of it, round and round, a transfer at a time, eight under way.
awaitable<void> move_all(peer_link& link, window_ref window, buffer mine, std::size_t bytes, std::size_t transfer,
                         bool put) {
  auto one = [](peer_link& over, window_ref to, buffer part, std::size_t at, bool out, permit) -> awaitable<void> {
    if (out)
      co_await async_flush(part, over.to(to), at);
    else
      co_await async_fetch(over.from(to), at, part);
  };
  semaphore turns(link.get_executor(), 8);
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t done = 0; done < bytes; done += transfer) {
      const auto at = done % mine.size();
      group.spawn(one(link, window, mine.slice(at, transfer), at, put, co_await turns.async_acquire()));
    }
  });
  if (v.error()) std::fprintf(stderr, "%s: ", v.error().message().c_str());
  must(!v.error(), "a transfer");
}

awaitable<void> compare(const ipc_settings& s, device d, const std::string& at, const told& peer) {
  window_table windows(d.get_executor());
  must(!windows.stage(d), "staging");
  auto link = co_await async_connect(windows, at, s.link());
  auto on = d.make_stream({.name = "by hand"}).value();
  auto theirs = d.import_memory({.kind = memory_kind::exportable,
                                 .offset = peer.offset,
                                 .bytes = s.set,
                                 .ipc = peer.handle,
                                 .whole = peer.whole})
                    .value();
  auto mine = d.allocate(s.set).value(), back = d.allocate(s.set).value();
  auto pattern = d.allocate(s.set, memory_kind::pinned).value(), seen = d.allocate(s.set, memory_kind::pinned).value();
  fill(pattern);
  must(!on.copy(mine, pattern), "filling");
  co_await on.record().async_wait();

  std::printf("%s, at most %s a run in transfers of %s, medians of %d\n\n", explain_device(s.device).c_str(),
              format_size(s.bytes).c_str(), format_size(s.transfer).c_str(), s.repeat);
  link_table table("cuda_ipc", "extent",
                   {{"raw", "cudaMemcpyAsync each, put", true},
                    {"raw_get", "got", true},
                    {"link", "link, put"},
                    {"get", "link, got"}});
  table.heading();
  std::size_t nth = 0;
  for (auto extent : s.chunks()) {
    const auto pieces = scattered(theirs, extent);
    const auto window = peer.windows[nth++];
    // Few small extents take as long each as many.
    const auto bytes = std::min(s.bytes, std::max(s.transfer, extent << 14));
    const auto puts = copies(mine, pieces, bytes, true), gets = copies(mine, pieces, bytes, false);
    for (int r = 0; r <= s.repeat; ++r) {  // the first is not counted
      std::vector<throughput> round;
      for (const auto* list : {&puts, &gets})
        round.push_back(timed(bytes, [&] { must(!copy_by_hand(on, *list) && !synchronize(on), "copies by hand"); }));
      for (bool put : {true, false}) {
        stopwatch watch;
        co_await move_all(link, window, put ? mine : back, bytes, s.transfer, put);
        round.push_back(watch.over(bytes));
      }
      if (r > 0) table.add(std::move(round));
    }
    const auto got = std::min(bytes, s.set);
    must(!on.copy(seen, back), "reading back");
    co_await on.record().async_wait();
    must(std::memcmp(seen.data(), pattern.data(), got) == 0, "comparing what came back");
    table.row(extent);
  }
  table.write(s.json);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How fast does KV get into another process's memory on the same GPU?"};
  ipc_settings s;
  s.bytes = std::size_t{4} << 30;
  s.set = 512 << 20;
  s.repeat = 3;
  s.add_to(app);
  app.add_option("--device", s.device, "both processes'")->capture_default_str();
  s.add_size(app, "--transfer", s.transfer, "bytes of a transfer");
  s.add_size(app, "--chunk", s.chunk, "bytes that a transfer is cut into");
  CLI11_PARSE(app, argc, argv);
  must(s.windows() <= most_windows && s.transfer <= s.set && s.set % s.transfer == 0 && s.set % s.most == 0,
       "these sizes: that");

  const auto at = "cuda_ipc" + listening_at("shm").substr(3);
  int ends[2];
  must(::pipe(ends) == 0, "pipe");
  const auto child = ::fork();  // before anything of CUDA
  if (child == 0) receiver(s, at, ends[1]);
  count_process(child);
  ::close(ends[1]);
  told peer;
  must(::read(ends[0], &peer, sizeof peer) == sizeof peer, "starting the receiver");
  if (!peer.ready) {
    std::printf("no device %s here: %s\n", s.device.c_str(), explain_device(s.device).c_str());
    return 0;
  }
  asio::io_context context(1);
  {
    auto d = open_device(context.get_executor(), s.device).value();
    asio::co_spawn(context, compare(s, d, at, peer), [&](std::exception_ptr e) {
      if (e) std::rethrow_exception(e);
      context.stop();
    });
    cokv::run(context);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::fflush(stdout);
  std::_Exit(0);
}

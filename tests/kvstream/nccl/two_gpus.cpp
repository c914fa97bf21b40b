// Ranks of the real NCCL: two processes, a GPU each, and one rank by itself. Where there is one GPU it is both's, if NCCL takes
// two ranks of it: from 2.31 on, told NCCL_MULTI_RANK_GPU_ENABLE=1.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "cokv/kvstream/nccl_group.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "link/nccl/nccl_pair.hpp"
#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::size_t bytes = 64 << 20;
constexpr int rounds = 20;

// In either process: what the child only printed nobody would hear of.
void must(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}
#define MUST(holds) must(holds, #holds)

// Bytes go both ways at once, in pieces; rank 1 then waits for what never comes.
awaitable<void> side(device d, cokv::detail::nccl_api api, int rank, int peer, error_code& last) {
  cokv::detail::nccl_id id;
  if (rank == 0) {
    id = (co_await make_nccl_id(api, d)).value();
    MUST(::write(peer, &id, sizeof id) == sizeof id);
  } else {
    MUST(::read(peer, &id, sizeof id) == sizeof id);
  }
  auto pair = (co_await cokv::detail::nccl_pair::connect(api, d, id, rank, {.stall = std::chrono::seconds(5)})).value();
  auto copies = d.make_stream().value();
  auto mine = d.allocate(bytes).value(), theirs = d.allocate(bytes).value();
  auto seen = filled(d, bytes, 0);
  const auto pieces = [](const buffer& b) {
    return std::vector{b.slice(0, 1), b.slice(1, (32 << 20) - 1), b.slice(32 << 20, 32 << 20)};
  };
  for (int i = 0; i < rounds; ++i) {
    if (auto ec = copies.copy(mine, filled(d, bytes, 2 * i + rank))) throw boost::system::system_error(ec);
    auto verdict = co_await with(task_group{}, [&](task_group& group) {
      group.spawn(pair.async_send(pieces(mine), copies.record(), {}, asio::deferred));
      group.spawn(pair.async_receive(pieces(theirs), asio::deferred));
    });
    if (!verdict) throw boost::system::system_error(verdict.error());
    if (auto ec = copies.copy(seen, theirs)) throw boost::system::system_error(ec);
    co_await copies.record().async_wait();
    MUST(all_are(seen, 2 * i + 1 - rank));
  }
  if (rank == 0) ::raise(SIGKILL);
  auto never = co_await pair.async_receive({theirs}, as_result);
  last = never ? error_code() : never.error();
}

constexpr std::size_t small_window = 10 << 20;

// One side of a link: it exposes a window, puts into the other's in pieces that nobody's chunks fit, and gets that back.
awaitable<void> linked_side(device d, int rank, int peer) {
  window_table windows(d.get_executor());
  MUST(!windows.stage(d));
  const link_options o{.digest = digest_algorithm::none, .greeting = std::chrono::seconds(10)};
  link_listener door;
  peer_link link;
  if (rank == 0) {
    door = link_listener::listen(windows, "nccl://localhost:0", o).value();
    const auto url = door.url();
    MUST(::write(peer, url.data(), url.size()) == static_cast<ssize_t>(url.size()));
    link = co_await door.async_accept(asio::use_awaitable);
  } else {
    std::array<char, 100> url;
    const auto n = ::read(peer, url.data(), url.size());
    MUST(n > 0);
    link =
        co_await async_connect(windows, std::string(url.data(), static_cast<std::size_t>(n)), o, asio::use_awaitable);
  }
  auto copies = d.make_stream().value();
  auto landing = d.allocate(small_window).value(), mine = d.allocate(small_window).value();
  auto back = d.allocate(small_window).value(), seen = filled(d, small_window, 0);
  const auto cut = [](const buffer& b, std::size_t at) {
    return std::vector{b.slice(0, at), b.slice(at, b.size() - at)};
  };
  auto w = windows.expose(cut(landing, 12'345), window_access::both).value();
  auto ref = w.ref();
  link_message ticket(sizeof ref);
  std::memcpy(ticket.data(), &ref, sizeof ref);
  co_await link.async_send(ticket, asio::use_awaitable);
  ticket = co_await link.async_receive(asio::use_awaitable);
  std::memcpy(&ref, ticket.data(), sizeof ref);
  for (int i = 0; i < rounds; ++i) {
    if (auto ec = copies.copy(mine, filled(d, small_window, 2 * i + rank))) throw boost::system::system_error(ec);
    const auto ec = co_await link.to(ref).backend()->put(0, cut(mine, (3 << 20) + 1), copies.record());
    MUST(!ec);
    MUST(!co_await link.from(ref).backend()->get(0, cut(back, 777), {}));
    if (auto copied = copies.copy(seen, back)) throw boost::system::system_error(copied);
    co_await copies.record().async_wait();
    MUST(all_are(seen, 2 * i + rank));
  }
  co_await link.async_send({}, asio::use_awaitable);  // done with the other's window
  co_await link.async_receive(asio::use_awaitable);
  if (auto ec = copies.copy(seen, landing)) throw boost::system::system_error(ec);
  co_await copies.record().async_wait();
  MUST(all_are(seen, 2 * (rounds - 1) + 1 - rank));
  MUST(w.bytes_put() == rounds * small_window);
  // The other one's message may still be on its way when this says goodbye, and is lost then.
  if (rank == 0) co_await link.async_closed(asio::use_awaitable);
}

// Sums in a row behind copies, few numbers and many; of the last one its rank is told by nobody but the time.
awaitable<void> summing(device d, std::uint32_t rank, std::uint32_t size, std::vector<std::byte> id, bool leaves,
                        error_code& last) {
  auto compute = d.make_stream({.name = "compute"}).value();
  auto group = (co_await nccl_group::join(d, compute, {rank, size, id}, {.stall = std::chrono::seconds(5)})).value();
  MUST(group->useful());
  for (std::size_t n : {std::size_t{1}, std::size_t{5000}, std::size_t{8} << 20}) {
    auto near = d.allocate(n * sizeof(float), memory_kind::pinned).value(), far = d.allocate(near.size()).value();
    const auto numbers = std::span(reinterpret_cast<float*>(near.data()), n);
    for (int i = 0; i < rounds; ++i) {
      std::ranges::fill(numbers, static_cast<float>(i) + 0.25f * static_cast<float>(rank));
      MUST(!compute.copy(far, near));
      for (int again = 0; again < 2; ++again) MUST(!co_await group->all_reduce(far));
      MUST(!compute.copy(near, far));
      co_await compute.record().async_wait();
      const float once = static_cast<float>(i * static_cast<int>(size)) + (size == 2 ? 0.25f : 0.f);
      MUST(std::ranges::all_of(numbers, [&](float x) { return x == once * static_cast<float>(size); }));
    }
  }
  if (leaves) ::raise(SIGKILL);
  auto alone = d.allocate(400).value();
  if (size == 1) group->abort(errc::unavailable);
  if (size > 1) MUST(!co_await group->all_reduce(alone));
  co_await group->closed();
  last = co_await group->all_reduce(alone);
  MUST(!group->useful());
  co_await compute.record().async_wait();  // it goes on
}

awaitable<void> summing_side(device d, int rank, int peer, error_code& last) {
  std::vector<std::byte> id(128);
  const auto size = static_cast<ssize_t>(id.size());
  if (rank == 0) {
    id = (co_await make_nccl_group_id(d)).value();
    MUST(::write(peer, id.data(), id.size()) == size);
  } else {
    MUST(::read(peer, id.data(), id.size()) == size);
  }
  co_await summing(d, static_cast<std::uint32_t>(rank), 2, std::move(id), rank == 0, last);
}

using one_side = std::function<awaitable<void>(device d, cokv::detail::nccl_api api, int rank, int peer)>;

// Rank 0 is a child of this process, rank 1 this process itself; `peer` is a socket between them. How the child ended;
// none where there is no second GPU.
std::optional<int> in_two_processes(const one_side& side) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const auto child = ::fork();  // before anything of CUDA
  REQUIRE(child >= 0);
  const int rank = child == 0 ? 0 : 1;
  asio::io_context ctx{1};
  auto api = cokv::detail::nccl_api::load();
  auto d = open_device(ctx.get_executor(), "cuda:" + std::to_string(rank));
  if (const char* told = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE"); !d && told && std::string_view(told) == "1")
    d = open_device(ctx.get_executor(), "cuda:0");
  if (!api || !d) {
    if (child == 0) ::_exit(0);
    MESSAGE("skipped: ", (!api ? "no NCCL" : explain_device("cuda:1")));
    ::waitpid(child, nullptr, 0);
    return std::nullopt;
  }
  asio::co_spawn(ctx, side(*d, *api, rank, ends[rank]), [&](std::exception_ptr e) {
    if (rank == 0) ::_exit(e ? 1 : 0);
    if (e) std::rethrow_exception(e);
  });
  run(ctx);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("nccl: a link over nccl:// between two GPUs puts and gets in pieces of any size") {
  const auto child = in_two_processes(
      [](device d, const cokv::detail::nccl_api&, int rank, int peer) { return linked_side(d, rank, peer); });
  if (child) CHECK(*child == 0);
}

TEST_CASE("nccl: two GPUs exchange KV both ways, and the death of one side ends what the other waits for") {
  error_code last;
  const auto child = in_two_processes(
      [&](device d, const cokv::detail::nccl_api& api, int rank, int peer) { return side(d, api, rank, peer, last); });
  if (!child) return;
  CHECK(last);
  CHECK(WIFSIGNALED(*child));
}

TEST_CASE("nccl: two GPUs add up, and the death of one side ends the other's sum") {
  error_code last;
  const auto child = in_two_processes(
      [&](device d, const cokv::detail::nccl_api&, int rank, int peer) { return summing_side(d, rank, peer, last); });
  if (!child) return;
  CHECK(last);
  CHECK(WIFSIGNALED(*child));
}

TEST_CASE("nccl: a rank by itself adds up on its stream, and is aborted") {
  asio::io_context ctx{1};
  auto d = open_device(ctx.get_executor(), "cuda:0");
  if (!d || !cokv::detail::nccl_api::load()) {
    MESSAGE("skipped: no GPU, or no NCCL");
    return;
  }
  error_code last;
  asio::co_spawn(
      ctx,
      [&]() -> awaitable<void> {
        const auto gpu = (co_await nccl_gpu_of(*d)).value();
        MUST(gpu.version > 0);
        MUST(gpu == (co_await nccl_gpu_of(*d)).value());
        co_await summing(*d, 0, 1, (co_await make_nccl_group_id(*d)).value(), false, last);
      },
      [](std::exception_ptr e) {
        if (e) std::rethrow_exception(e);
      });
  run(ctx);
  CHECK(last == errc::unavailable);
}

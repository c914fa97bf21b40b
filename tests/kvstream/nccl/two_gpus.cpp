// A pair of ranks of the real NCCL: two processes, a GPU each. (NCCL refuses two ranks on one.)
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

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

// Bytes go both ways at once, in pieces; rank 1 then waits for what never comes.
awaitable<void> side(device d, cokv::detail::nccl_api api, int rank, int peer, error_code& last) {
  cokv::detail::nccl_id id;
  if (rank == 0) {
    id = (co_await make_nccl_id(api, d)).value();
    CHECK(::write(peer, &id, sizeof id) == sizeof id);
  } else {
    CHECK(::read(peer, &id, sizeof id) == sizeof id);
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
    CHECK(all_are(seen, 2 * i + 1 - rank));
  }
  if (rank == 0) ::raise(SIGKILL);
  auto never = co_await pair.async_receive({theirs}, as_result);
  last = never ? error_code() : never.error();
}

}  // namespace

TEST_CASE("nccl: two GPUs exchange KV both ways, and the death of one side ends what the other waits for") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const auto child = ::fork();  // before anything of CUDA
  REQUIRE(child >= 0);
  const int rank = child == 0 ? 0 : 1;
  asio::io_context ctx{1};
  auto api = cokv::detail::nccl_api::load();
  auto d = open_device(ctx.get_executor(), "cuda:" + std::to_string(rank));
  if (!api || !d) {
    if (child == 0) ::_exit(0);
    MESSAGE("skipped: ", (!api ? "no NCCL" : explain_device("cuda:1")));
    ::waitpid(child, nullptr, 0);
    return;
  }
  error_code last;
  asio::co_spawn(ctx, side(*d, *api, rank, ends[rank], last), [&](std::exception_ptr e) {
    if (e && rank == 0) ::_exit(1);
    if (e) std::rethrow_exception(e);
  });
  run(ctx);
  CHECK(last);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
}

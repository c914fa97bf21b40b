// A worker at the other rank of `mpirun -n 2`, which offers memory until its visitor goes. Rank 1 is the worker.
#pragma once

#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/result.hpp"
#include "two_workers.hpp"
#include "words.hpp"

namespace cokv::bench {

inline std::string_view mpi_rank() {
  const auto* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank ? rank : "";
}

// What rank 1 does.
inline void offer_to_rank_0(std::size_t bytes) {
  asio::io_context ctx{1};
  asio::co_spawn(
      ctx,
      [](std::size_t n) -> awaitable<void> {
        window_table windows(co_await asio::this_coro::executor);
        auto door = link_listener::listen(windows, "mpi://").value();
        auto link = co_await door.async_accept();
        const auto w = windows.expose({buffer::host(n)}, window_access::both).value();
        co_await say(link, w.ref());
        co_await link.async_closed();
      }(bytes),
      [](std::exception_ptr e) {
        if (e) std::rethrow_exception(e);
      });
  cokv::run(ctx);
}

// Rank 0's link to it.
class mpi_peer {
 public:
  explicit mpi_peer(worker& near) : near_(near) {
    must(mpi_rank() == "0", "mpi without `mpirun -n 2`");
    ref_ = near_.get([](mpi_peer& p) -> awaitable<window_ref> {
      p.here_.emplace(co_await asio::this_coro::executor);
      for (;;) {
        auto link = co_await async_connect(*p.here_, "mpi://1", {}, as_result);
        must(link || link.error() == errc::unavailable, "connecting over MPI");
        if (!link) continue;  // it does not listen yet
        p.link_ = std::move(*link);
        break;
      }
      co_return co_await hear<window_ref>(p.link_);
    }(*this));
  }
  ~mpi_peer() {
    near_.get([](mpi_peer& p) -> awaitable<void> {
      p.link_.close();
      co_await p.link_.async_closed();
      p.link_ = {};
      p.here_.reset();
    }(*this));
  }
  mpi_peer(const mpi_peer&) = delete;
  mpi_peer& operator=(const mpi_peer&) = delete;

  sink to() const { return link_.to(ref_); }

 private:
  worker& near_;
  std::optional<window_table> here_;
  peer_link link_;
  window_ref ref_;
};

}  // namespace cokv::bench

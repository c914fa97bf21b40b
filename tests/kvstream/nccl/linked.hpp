// Two workers on one context, each with a device of fake_cuda, and a link over nccl:// between them.
#pragma once

#include <algorithm>
#include <string>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/with.hpp"
#include "nccl/two_devices.hpp"
#include "support/bytes.hpp"

namespace cokv::test {

// nccl:// finds fake_nccl where it would look for the library.
struct nccl_is_fake {
  nccl_is_fake() {
    static const auto table = fake_nccl::table();
    detail::nccl_api::stand_in(&table);
  }
  ~nccl_is_fake() { detail::nccl_api::stand_in(nullptr); }
};

inline link_options no_digest() {
  link_options o;
  o.digest = digest_algorithm::none;
  return o;
}

struct linked : nccl_is_fake, two_devices {
  explicit linked(device_staging how = {.chunk = 4096, .count = 2}) {
    CHECK(!here.stage(on[0], how));
    CHECK(!there.stage(on[1], how));
  }
  // The links say goodbye, and what they had on the devices ends.
  ~linked() {
    near = far = {};
    door.close();
    if (leave) return;
    CHECK(drive([] { return fake_nccl::live_communicators() == 0; }));
  }

  window_table here{ctx.get_executor()}, there{ctx.get_executor()};
  link_listener door;
  peer_link near, far;
  bool leave = false;  // with whatever is under way

  // Both ends' errors; `through` stands between them where it is given.
  std::array<error_code, 2> connect(link_options o = no_digest(), std::string through = {}) {
    door = link_listener::listen(there, "nccl://localhost:0", o).value();
    std::array<std::optional<error_code>, 2> ends;
    asio::cancellation_signal stop;
    door.async_accept(asio::bind_cancellation_slot(stop.slot(), [&](error_code ec, peer_link l) {
      far = std::move(l);
      ends[1] = ec;
    }));
    async_connect(here, through.empty() ? door.url() : through, o, [&](error_code ec, peer_link l) {
      near = std::move(l);
      ends[0] = ec;
      if (ec) stop.emit(asio::cancellation_type::terminal);
    });
    REQUIRE(drive([&] { return ends[0] && ends[1]; }));
    return {*ends[0], *ends[1]};
  }

  void run(awaitable<void> body) {
    bool over = false;
    asio::co_spawn(ctx, std::move(body), [&](std::exception_ptr e) {
      if (e) std::rethrow_exception(e);
      over = true;
    });
    REQUIRE(drive([&] { return over; }));
  }
};

// As patterned(), in memory of a device.
inline buffer cuda_bytes(device& d, std::size_t n, std::uint64_t seed) {
  auto b = d.allocate(n).value();
  std::memcpy(b.data(), patterned(n, seed).data(), n);
  return b;
}

inline awaitable<error_code> put(const sink& to, std::uint64_t offset, std::vector<buffer> pieces) {
  return to.backend()->put(offset, std::move(pieces), {});
}
inline awaitable<error_code> get(const source& from, std::uint64_t offset, std::vector<buffer> pieces) {
  return from.backend()->get(offset, std::move(pieces), {});
}

// In pieces, as an operation.
template <class Token>
auto async_put(const sink& to, std::uint64_t offset, std::vector<buffer> pieces, Token&& token) {
  const auto ex = to.get_executor();
  return cokv::detail::initiate_erased<void(error_code)>(
      std::forward<Token>(token), ex,
      [ex, b = to.backend(), offset, pieces = std::move(pieces)](asio::any_completion_handler<void(error_code)> h) {
        cokv::detail::run_as_operation(ex, put(sink(b), offset, pieces), std::move(h));
      });
}

}  // namespace cokv::test

// What every operation on files and connections promises (tests/support/operation_matrix.hpp).
#include <doctest/doctest.h>

#include <array>

#include "cokv/runtime/file.hpp"
#include "cokv/runtime/net.hpp"
#include "support/operation_matrix.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct opened {
  explicit opened(sim_context& ctx) : fs(file_system::of(ctx.get_executor())) {
    run_to_end(ctx, [](opened& self) -> awaitable<void> {
      self.f = co_await self.fs.async_open("a", open_mode::create, asio::use_awaitable);
      co_await self.f.async_write_at(0, asio::buffer(self.bytes), asio::use_awaitable);
    }(*this));
  }
  file_system& fs;
  file f;
  std::array<char, 64> bytes{};
};

struct connected {
  explicit connected(sim_context& ctx) : net(network::of(ctx.get_executor())) {
    run_to_end(ctx, [](connected& self) -> awaitable<void> {
      self.listening = self.net.listen({"localhost", 80}).value();
      self.near = co_await self.net.async_connect({"localhost", 80}, asio::use_awaitable);
      self.far = co_await self.listening.async_accept(asio::use_awaitable);
    }(*this));
  }
  network& net;
  listener listening;
  byte_stream near, far;
  std::array<char, 64> bytes{};
};

}  // namespace

TEST_CASE("file: reading, writing and syncing keep the promises of an operation") {
  check_operation("read_at", [](sim_context& ctx) {
    auto o = std::make_shared<opened>(ctx);
    return matrix_row([o](auto&& token) {
      return o->f.async_read_at(0, asio::buffer(o->bytes), std::forward<decltype(token)>(token));
    });
  });
  check_operation("write_at", [](sim_context& ctx) {
    auto o = std::make_shared<opened>(ctx);
    return matrix_row([o](auto&& token) {
      return o->f.async_write_at(0, asio::buffer(o->bytes), std::forward<decltype(token)>(token));
    });
  });
  check_operation("sync", [](sim_context& ctx) {
    auto o = std::make_shared<opened>(ctx);
    return matrix_row([o](auto&& token) { return o->f.async_sync(std::forward<decltype(token)>(token)); });
  });
}

TEST_CASE("file_system: opening, listing and directories keep the promises of an operation") {
  check_operation("open", [](sim_context& ctx) {
    auto* fs = &file_system::of(ctx.get_executor());
    return matrix_row(
        [fs](auto&& token) { return fs->async_open("b", open_mode::create, std::forward<decltype(token)>(token)); });
  });
  check_operation("list", [](sim_context& ctx) {
    auto o = std::make_shared<opened>(ctx);
    return matrix_row([o](auto&& token) { return o->fs.async_list(".", std::forward<decltype(token)>(token)); });
  });
  check_operation("rename", [](sim_context& ctx) {
    auto o = std::make_shared<opened>(ctx);
    return matrix_row([o](auto&& token) { return o->fs.async_rename("a", "c", std::forward<decltype(token)>(token)); });
  });
  check_operation("remove", [](sim_context& ctx) {
    auto o = std::make_shared<opened>(ctx);
    return matrix_row([o](auto&& token) { return o->fs.async_remove("a", std::forward<decltype(token)>(token)); });
  });
  check_operation("make_directories", [](sim_context& ctx) {
    auto* fs = &file_system::of(ctx.get_executor());
    return matrix_row(
        [fs](auto&& token) { return fs->async_make_directories("d/e", std::forward<decltype(token)>(token)); });
  });
}

TEST_CASE("net: reading and writing keep the promises of an operation") {
  check_operation("read_some", [](sim_context& ctx) {
    auto c = std::make_shared<connected>(ctx);
    return matrix_row(
        [c](auto&& token) {
          return c->near.async_read_some(asio::buffer(c->bytes), std::forward<decltype(token)>(token));
        },
        [c] { c->far.async_write_some(asio::buffer(c->bytes), asio::detached); });
  });
  check_operation("write_some", [](sim_context& ctx) {
    auto c = std::make_shared<connected>(ctx);
    return matrix_row([c](auto&& token) {
      return c->near.async_write_some(asio::buffer(c->bytes), std::forward<decltype(token)>(token));
    });
  });
}

TEST_CASE("net: connecting and accepting keep the promises of an operation") {
  check_operation("accept", [](sim_context& ctx) {
    auto c = std::make_shared<connected>(ctx);
    return matrix_row([c](auto&& token) { return c->listening.async_accept(std::forward<decltype(token)>(token)); },
                      [c] { c->net.async_connect({"localhost", 80}, asio::detached); });
  });
  check_operation("connect", [](sim_context& ctx) {
    auto c = std::make_shared<connected>(ctx);
    return matrix_row(
        [c](auto&& token) { return c->net.async_connect({"localhost", 80}, std::forward<decltype(token)>(token)); });
  });
}

// Writes by reference hold memory of the server while they are under way, as much as all transfers together may.
#include "cache/transfer.hpp"
#include "write_by_reference.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint32_t count = 2;

// A server with a socket, and room for one write of so many blocks at a time.
struct narrow {
  explicit narrow(asio::any_io_executor ex)
      : memory(ex, {.limit_bytes = 1 << 20, .readable = true}),
        lending(std::make_shared<cache::lending>(memory.lent(), 4711, 1 << 19, path)),
        service(memory, {{"memory", &memory}},
                {.room = cache::layer_memory::needed(contract_layout(), count) + 2048,
                 .patience = std::chrono::seconds(1),
                 .lending = lending}),
        server(ex) {
    service.add_routes(server);
    server.listen(endpoint::local(path));
  }

  std::uint64_t free_room() const {
    const auto page = service.metrics();
    return std::stoull(page.substr(page.find("\ncokv_cache_room_bytes ") + 23));
  }

  std::string path = fresh_path();
  memory_store memory;
  std::shared_ptr<cache::lending> lending;
  cache::service service;
  http::server server;
};

}  // namespace

TEST_CASE("cache taking: a write for which there is no room hears so in time, and nobody else is harmed") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        narrow all(ex);
        const auto at = endpoint::local(all.path);
        const auto before = all.free_room();
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(all.server.run());
          const shared_blocks held(0, count), wanted(10, count);
          const auto whole = post(write_path(), body_of(held, 0, count));
          auto first = co_await raw_client::connect(at);
          first.stream.attach(held.file());
          const auto most = whole.size() - end_of_places().size();
          co_await first.send(whole.substr(0, most));
          co_await until(ex, [&] { return all.lending->taken_segments() == count * contract_layout().layers(); });
          CHECK(all.free_room() < before);

          auto second = co_await raw_client::connect(at);
          second.stream.attach(wanted.file());
          const auto start = clock::of(ex).now();
          co_await second.send(post(write_path(), body_of(wanted, 10, count)));
          auto told = co_await second.read();
          CHECK(told.result_int() == 503);
          CHECK(told[bh::field::retry_after] == "1");
          CHECK(told.body().find("\"code\":\"busy\"") != std::string::npos);
          CHECK(clock::of(ex).now() - start < 2s);
          CHECK(co_await say(at, nullptr, get("/v1/info")) == 200);
          CHECK(co_await all.memory.async_match(cache_ns, contract_keys(10, count)) == 0);

          co_await first.send(whole.substr(most));
          CHECK(co_await outcome(first) == 200);
          CHECK(all.free_room() == before);
          CHECK(co_await say(at, wanted.file(), post(write_path(), body_of(wanted, 10, count))) == 200);
          CHECK(co_await read_blocks(all.memory, cache_ns, 0, count) == count);
          CHECK(co_await read_blocks(all.memory, cache_ns, 10, count) == count);
          all.server.drain(0s);
        });
        CHECK_MESSAGE(bool(v), v.error().message());
      },
      {.real = false, .seeds = 10});
}

// Clients on the server's own machine, which tell it where the blocks lie that it is to store.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cokv/kvstream/block_places.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "shared_blocks.hpp"
#include "support/lingering.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::string text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string begin_of(std::uint32_t first, std::uint32_t count) {
  return text(
      stream_writer({.ns = cache_ns, .generation = 1, .layout = contract_layout(), .keys = contract_keys(first, count)})
          .begin());
}
std::string end_of_places() { return text(block_places{.memory = 0, .generation = 1}.encode()); }

std::string write_path(std::string_view more = "") {
  return "/v1/kv/" + cache_ns.hex() + ":write?by=reference" + std::string(more);
}

// A whole body of two layers or more.
std::string body_of(const shared_blocks& blocks, std::uint32_t first, std::uint32_t count) {
  auto out = begin_of(first, count);
  for (std::uint32_t l = 0; l < contract_layout().layers(); ++l) out += text(blocks.where(l).encode());
  return out + end_of_places();
}

// What becomes of it in the end; interim answers aside.
awaitable<unsigned> outcome(raw_client& c) {
  for (;;) {
    const auto code = (co_await c.read()).result_int();
    if (code != 102 && code != 100) co_return code;
  }
}

awaitable<unsigned> say(endpoint to, std::shared_ptr<const int> file, std::string request) {
  auto c = co_await raw_client::connect(to);
  if (file) c.stream.attach(std::move(file));
  co_await c.send(std::move(request));
  co_return co_await outcome(c);
}

}  // namespace

TEST_CASE("cache taking: the contract of a store whose writes are copied from their writer's memory") {
  static std::uint64_t taken = 0;
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        auto server = std::make_shared<lender>(ex, lender_options{.limit = limit, .room = limit});
        auto store = std::make_unique<http_store>(ex, server->local_url());
        std::shared_ptr<void> keep(server.get(), [server](void*) { taken += server->lending().taken_segments(); });
        co_return stored{std::move(store), keep};
      },
      {.run = {.seeds = 5}, .has_limit = false});
  CHECK(taken > 0);
}

TEST_CASE("cache taking: what lies in shared memory is copied from there, other memory by way of some that is shared") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const auto layers = contract_layout().layers();
        const shared_blocks blocks(0, 3);
        {
          http_store s(ex, server.local_url());
          CHECK(!co_await write_shared(s, blocks, 0, 3));
          CHECK(server.lending().taken_segments() == 3 * layers);
          CHECK(server.lending().mapped()->bytes() == blocks.memory().size());  // and nothing else
          CHECK(co_await read_blocks(s, cache_ns, 0, 4) == 3);
          CHECK(!co_await write_shared(s, shared_blocks(0, 3), 0, 3));  // are there already

          CHECK(!co_await write_blocks(s, cache_ns, 10, 2));  // a heap's
          CHECK(co_await read_blocks(s, cache_ns, 10, 2) == 2);
          auto writer = co_await s.async_open_write(cache_ns, contract_layout(), contract_keys(20, 3));
          const shared_blocks some(20, 3);
          for (std::uint32_t l = layers; l-- > 0;) {  // the last layer first, and of both kinds
            auto segments = contract_segments(20, 3, l);
            segments[1] = some.segment(l, 1);
            co_await writer->async_write(l, std::move(segments));
          }
          co_await writer->async_commit();
          CHECK(co_await read_blocks(s, cache_ns, 20, 3) == 3);
          CHECK(server.lending().taken_segments() == (3 + 3 + 2 + 3) * layers);
          CHECK(server.lending().taken_bytes() == (3 + 3 + 2 + 3) * contract_layout().bytes());
          CHECK(s.info().written_blocks == 11);
        }
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });
      },
      {.seeds = 10});
}

TEST_CASE("cache taking: a client over TCP finds the socket by itself, and writes by way of it") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        for (const std::size_t shards : {1, 2}) {
          lender server(ex, {.shards = shards});
          http_store s(ex, server.url());
          CHECK(!co_await write_blocks(s, cache_ns, 0, 2));
          CHECK(server.lending().taken_segments() == 0);
          CHECK(!co_await write_blocks(s, cache_ns, 2, 2));  // it learnt it from the answer
          CHECK(server.lending().taken_segments() == 2 * contract_layout().layers());
          CHECK(!co_await write_blocks(s, cache_ns, 2, 2, {.deferred = true, .force = true}));
          CHECK(server.lending().taken_segments() == 4 * contract_layout().layers());
          CHECK(co_await read_blocks(s, cache_ns, 0, 5) == 4);
          http_store plain(ex, server.url(), {.shared_memory = false});
          CHECK(!co_await write_blocks(plain, cache_ns, 5, 2));
          CHECK(server.lending().taken_segments() == 4 * contract_layout().layers());
          server.stop();
          co_await until(ex, [&] { return server.ended(); });
        }
      },
      {.seeds = 10});
}

TEST_CASE("cache taking: a socket that belongs to another server is not written to") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender other(ex, {.id = 4712});
        memory_store memory(ex, {.limit_bytes = 1 << 20, .readable = true});
        const auto lending = std::make_shared<cache::lending>(memory.lent(), 4711, 1 << 19, other.path());
        cache::service service(memory, {{"memory", &memory}}, {.lending = lending});
        http::server server(ex);
        service.add_routes(server);
        server.listen({"127.0.0.1", 0});
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(server.run());
          http_store s(ex, "http://" + server.local_endpoint().to_string());
          for (std::uint32_t i = 0; i < 3; ++i) CHECK(!co_await write_blocks(s, cache_ns, i, 1));
          CHECK(co_await memory.async_match(cache_ns, contract_keys(0, 3)) == 3);
          CHECK(co_await other.memory().async_match(cache_ns, contract_keys(0, 3)) == 0);
          server.drain(1s);
        });
        CHECK(bool(v));
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: who may not write is refused, and namespaces hold") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        http::api_keys keys;
        keys.add("all");
        keys.add("reader", {.name = "reader", .rights = static_cast<std::uint8_t>(http::right::read)});
        keys.add("writer", {.name = "writer", .rights = static_cast<std::uint8_t>(http::right::write)});
        keys.add("here", {.name = "here", .namespaces = {cache_ns}});
        keys.add("there",
                 {.name = "there", .namespaces = {namespace_id::of("n", geometry::attention(1, 1, 4, dtype::f32))}});
        lender server(ex, {.keys = keys});
        const shared_blocks blocks(0, 2);
        for (const auto& [key, code] :
             {std::pair("reader", 403u), {"there", 403u}, {"none", 401u}, {"here", 200u}, {"writer", 200u}}) {
          CAPTURE(key);
          const auto field = std::string("Authorization: Bearer ") + key + "\r\n";
          CHECK(co_await say(server.socket(), blocks.file(), post(write_path(), body_of(blocks, 0, 2), field)) == code);
        }
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 2)) == 2);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: what is not as it was said is refused, and stores nothing") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const shared_blocks blocks(0, 2);
        const auto layers = contract_layout().layers();
        const auto with = [&](auto change) {
          auto body = begin_of(0, 2);
          for (std::uint32_t l = 0; l < layers; ++l) {
            auto where = blocks.where(l);
            if (l == layers - 1) change(where);
            body += text(where.encode());
          }
          return post(write_path(), body + end_of_places());
        };
        const auto ask = [&](std::string request) { return say(server.socket(), blocks.file(), std::move(request)); };
        const auto whole = body_of(blocks, 0, 2);

        CHECK(co_await ask(with([](auto& w) { w.places[1].digest ^= 1; })) == 422);
        CHECK(co_await ask(with([&](auto& w) { w.places[1].offset = blocks.memory().size() - 1; })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.places[1].offset = ~0ull; })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.places[1].offset = ~0ull - 3; })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.generation = 2; })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.memory = 1; })) == 409);  // nothing came that it could be
        CHECK(co_await ask(with([](auto& w) { w.memory = ~0ull; })) == 409);
        CHECK(co_await ask(with([](auto& w) { w.layers = 0, w.places.clear(); })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.lives.clear(), w.places.clear(); })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.lives.push_back(0), w.places.push_back(w.places[0]); })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.lives.pop_back(), w.places.pop_back(); })) == 400);  // then the end
        for (const auto cut : {std::size_t(1), std::size_t(100), whole.size() / 2, whole.size() - 1}) {
          CAPTURE(cut);
          CHECK(co_await ask(post(write_path(), whole.substr(0, cut))) == 400);
        }
        CHECK(co_await ask(post(write_path(), whole + "x")) == 400);
        CHECK(co_await ask(post(write_path(), begin_of(0, 2) + std::string(1000, 'x'))) == 400);
        auto flipped = whole;
        flipped[begin_of(0, 2).size() + 40] ^= 1;
        CHECK(co_await ask(post(write_path(), flipped)) == 422);
        CHECK(co_await ask(post("/v1/kv/" + cache_ns.hex() + ":write?by=value", whole)) == 400);
        CHECK(co_await ask(post(write_path(), whole, "Cokv-Memory: 1\r\n")) == 409);
        CHECK(co_await say(server.socket(), nullptr, post(write_path(), whole)) == 409);
        CHECK(co_await say(server.at(), nullptr, post(write_path(), whole)) == 404);
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 2)) == 0);
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });
        CHECK(server.memory().info().leased_bytes == 0);

        CHECK(co_await ask(post(write_path(), whole, "Cokv-Memory: 4711\r\n")) == 200);
        CHECK(co_await read_blocks(server.memory(), cache_ns, 0, 2) == 2);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: memory that may go away under its reader is not mapped") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const shared_blocks blocks(0, 2);
        const auto open = [&](unsigned flags, std::size_t bytes, unsigned seals) {
          const int fd = ::memfd_create("test", MFD_CLOEXEC | flags);
          if (fd < 0) return std::shared_ptr<const int>();
          (void)!::ftruncate(fd, static_cast<off_t>(bytes));
          if (seals) ::fcntl(fd, F_ADD_SEALS, seals);
          return memory_handle::of_descriptor(fd, 0, 0).file;
        };
        const auto both = F_SEAL_SHRINK | F_SEAL_GROW;
        const std::size_t enough = 1 << 21;
        int pipes[2];
        REQUIRE(::pipe2(pipes, O_CLOEXEC) == 0);
        const auto other_end = memory_handle::of_descriptor(pipes[1], 0, 0).file;
        for (const auto& file :
             {open(0, enough, 0), open(MFD_ALLOW_SEALING, enough, 0), open(MFD_ALLOW_SEALING, enough, F_SEAL_GROW),
              open(MFD_ALLOW_SEALING, 0, both), open(MFD_ALLOW_SEALING | MFD_HUGETLB, enough, both),
              memory_handle::of_descriptor(::open("/dev/zero", O_RDONLY | O_CLOEXEC), 0, 0).file,
              memory_handle::of_descriptor(pipes[0], 0, 0).file}) {
          if (!file) continue;  // no such pages here
          CHECK(co_await say(server.socket(), file, post(write_path(), body_of(blocks, 0, 2))) == 400);
        }
        // Sealed when it was cut: what is said to lie there lies outside.
        CHECK(co_await say(server.socket(), open(MFD_ALLOW_SEALING, 100, both),
                           post(write_path(), body_of(blocks, 0, 2))) == 400);
        CHECK(co_await say(server.socket(), open(MFD_ALLOW_SEALING, std::size_t{1} << 45, both),
                           post(write_path(), body_of(blocks, 0, 2))) == 413);
        // Nothing was ever there: it reads as zeros, which is not what the digests say.
        CHECK(co_await say(server.socket(), open(MFD_ALLOW_SEALING, enough, both),
                           post(write_path(), body_of(blocks, 0, 2))) == 422);
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 2)) == 0);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: what is no memory does not keep the server when it is closed") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    lender server(ex);
    const shared_blocks blocks(0, 2);
    lingering slow;
    CHECK(co_await say(server.socket(), std::move(slow.end), post(write_path(), body_of(blocks, 0, 2))) == 400);
    CHECK(co_await say(server.socket(), nullptr, get("/healthz")) == 200);
  });
}

TEST_CASE("cache taking: memory that can't be mapped now is the server's trouble, and sent for a while") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    lender server(ex, {.most_mapped = ~std::uint64_t{0}});
    const shared_blocks blocks(0, 2);
    const auto huge = memory_handle::of_descriptor(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING), 0, 0).file;
    REQUIRE(::ftruncate(*huge, off_t{1} << 47) == 0);  // more than a process has addresses
    REQUIRE(::fcntl(*huge, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    CHECK(co_await say(server.socket(), huge, post(write_path(), body_of(blocks, 0, 2))) == 503);
    CHECK(server.lending().mapped()->bytes() == 0);
    CHECK(co_await say(server.socket(), blocks.file(), post(write_path(), body_of(blocks, 0, 2))) == 200);
  });
}

TEST_CASE("cache taking: a client of HTTP/1.0 is told of the end alone") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const shared_blocks blocks(0, 2);
        auto request = post(write_path(), body_of(blocks, 0, 2));
        request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
        auto c = co_await raw_client::connect(server.socket());
        c.stream.attach(blocks.file());
        CHECK((co_await c.ask(std::move(request))).result_int() == 200);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: a connection shows so much memory, and no more descriptors than anybody can want") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        auto c = co_await raw_client::connect(server.socket());
        std::vector<std::unique_ptr<shared_blocks>> all;
        for (std::uint32_t i = 0; i < 9; ++i) {
          all.push_back(std::make_unique<shared_blocks>(i, 1));
          auto body = begin_of(i, 1);
          for (std::uint32_t l = 0; l < contract_layout().layers(); ++l) body += text(all[i]->where(l, i).encode());
          c.stream.attach(all[i]->file());
          co_await c.send(post(write_path(), body + end_of_places()));
          CHECK(co_await outcome(c) == (i < 8 ? 200 : 413));
        }
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 9)) == 8);
        CHECK(server.lending().mapped()->bytes() <= 8 * all[0]->memory().size());
        // The same memory over another connection is mapped already.
        auto again = co_await raw_client::connect(server.socket());
        const auto mapped = server.lending().mapped()->bytes();
        again.stream.attach(all[0]->file());
        co_await again.send(post(write_path("&force=1"), body_of(*all[0], 0, 1)));
        CHECK(co_await outcome(again) == 200);
        CHECK(server.lending().mapped()->bytes() <= mapped);
        again.stream.close();
        c.stream.close();
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });

        auto many = co_await raw_client::connect(server.socket());
        error_code ec;
        for (int i = 0; i < 10'000 && !ec; ++i) {
          many.stream.attach(all[0]->file());
          if (i % 16 == 15) ec = co_await many.send("x");
        }
        many.stream.close();
        http_store s(ex, server.local_url());
        CHECK(co_await read_blocks(s, cache_ns, 0, 8) == 8);
      },
      {.seeds = 2});
}

TEST_CASE("cache taking: bytes that change while they are copied are stored as their digest says, or not at all") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        const shared_blocks blocks(0, 2);
        auto c = co_await raw_client::connect(server.socket());
        c.stream.attach(blocks.file());
        const auto whole = body_of(blocks, 0, 2);
        const auto first = begin_of(0, 2).size() + text(blocks.where(0).encode()).size();
        co_await c.send(post(write_path(), whole).substr(0, post(write_path(), whole).size() - whole.size() + first));
        CHECK((co_await c.read()).result_int() == 102);
        blocks.segment(0, 0).data()[0] ^= std::byte{1};  // copied already: it is the writer's again
        blocks.segment(1, 1).data()[7] ^= std::byte{1};  // not yet
        co_await c.send(whole.substr(first));
        CHECK(co_await outcome(c) == 422);
        CHECK(co_await s.async_match(cache_ns, contract_keys(0, 2)) == 0);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: a writer that goes on the way leaves no block, no room taken and no mapping") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const shared_blocks blocks(0, 2);
        const auto request = post(write_path(), body_of(blocks, 0, 2));
        for (std::size_t n = 150; n < request.size(); n += 50) {
          auto c = co_await raw_client::connect(server.socket());
          c.stream.attach(blocks.file());
          co_await c.send(request.substr(0, n));
          co_await pause(1ms);
          c.stream.close();
        }
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });
        co_await until(ex, [&] { return server.memory().info().leased_bytes == 0; });
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 2)) == 0);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: a server that ends fails the writes under way, and no others") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto path = fresh_path();
        auto first = std::make_unique<lender>(ex, lender_options{.id = 1}, path);
        http_store s(ex, "unix://" + path);
        const shared_blocks blocks(0, 2);
        CHECK(!co_await write_shared(s, blocks, 5, 2));
        auto writer = co_await s.async_open_write(cache_ns, contract_layout(), contract_keys(0, 2));
        co_await writer->async_write(0, blocks.layer(0));
        first->stop();
        co_await until(ex, [&] { return first->ended(); });
        first.reset();
        CHECK(!(co_await writer->async_write(1, blocks.layer(1), as_result)).has_value());
        CHECK((co_await writer->async_commit(as_result)).error() == errc::closed);
        CHECK(s.info().failed_writes == 2);
        co_await clock::of(ex).async_wait_for(100ms, asio::deferred);
        lender second(ex, {.id = 2}, path);
        CHECK(!co_await write_shared(s, blocks, 0, 2));  // it is another: sent, and told so
        CHECK(second.lending().taken_segments() == 0);
        CHECK(!co_await write_shared(s, blocks, 0, 2, {.force = true}));
        CHECK(second.lending().taken_segments() == 2 * contract_layout().layers());
        CHECK(co_await read_blocks(s, cache_ns, 0, 2) == 2);
      },
      {.seeds = 10});
}

TEST_CASE("cache taking: a connection over which memory was shown that is gone is not used again") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        for (std::uint32_t i = 0; i < 20; ++i) {
          CHECK(!co_await write_shared(s, shared_blocks(i, 1), i, 1));
          CHECK(server.lending().mapped()->bytes() <= 3 * shared_blocks(i, 1).memory().size());
        }
        CHECK(server.lending().taken_segments() == 20 * contract_layout().layers());
        CHECK(co_await read_blocks(s, cache_ns, 0, 20) == 20);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: a writer that computes between its layers has as long for them as one who sends them") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        constexpr std::uint64_t bytes = 1 << 20;
        const block_layout layout{std::vector<std::uint64_t>(6, bytes)};
        lender server(ex, {.limit = 8 * bytes});
        http_store s(ex, server.local_url());
        const auto memory = allocate_shared(bytes).value();
        auto writer = co_await s.async_open_write(cache_ns, layout, contract_keys(0, 1));
        for (std::uint32_t l = 0; l < layout.layers(); ++l) {
          co_await writer->async_write(l, {memory});
          co_await pause(14s);
        }
        CHECK((co_await writer->async_commit(as_result)).has_value());
        CHECK(server.lending().taken_segments() == layout.layers());
      },
      {.real = false, .seeds = 3});
}

TEST_CASE("cache taking: segments that would take much memory to copy them to are sent") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex, {.limit = 64 << 20});
        http_store s(ex, server.local_url());
        for (const std::uint64_t more : {1, 0}) {
          const block_layout layout{{(8 << 20) + more}};
          auto writer = co_await s.async_open_write(cache_ns, layout, contract_keys(0, 1), {.force = true});
          co_await writer->async_write(0, {buffer::host(layout.bytes())});
          co_await writer->async_commit();
          CHECK(server.lending().taken_segments() == 1 - more);
        }
      },
      {.seeds = 1});
}

TEST_CASE("cache taking: where no more memory is mapped, blocks are sent") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const shared_blocks blocks(0, 2);
        lender server(ex, {.most_mapped = 4096});
        http_store s(ex, server.local_url());
        CHECK(co_await write_shared(s, blocks, 0, 2) == errc::too_large);
        CHECK(!co_await write_shared(s, blocks, 0, 2));
        CHECK(server.lending().taken_segments() == 0);
        CHECK(co_await read_blocks(s, cache_ns, 0, 2) == 2);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: descriptors that nobody wants are closed, also under a lease") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        const shared_blocks blocks(0, 1);
        CHECK(!co_await write_shared(s, blocks, 0, 1));
        auto c = co_await raw_client::connect(server.socket());
        // Beside a request that has no use for it; and while the connection stands for what was lent.
        for (const bool lent : {false, true}) {
          CAPTURE(lent);
          if (lent) {
            co_await c.send(post("/v1/kv/" + cache_ns.hex() + ":read?by=reference", begin_of(0, 1)));
            CHECK(co_await outcome(c) == 200);
            co_await until(ex, [&] { return server.lending().blocks() == 1; });
          }
          auto file = shared_blocks(1, 1).file();
          const std::weak_ptr<const int> there = file;
          c.stream.attach(std::move(file));
          co_await c.send(lent ? std::string("x") : get("/healthz"));
          if (!lent) CHECK((co_await c.read()).result_int() == 200);
          co_await until(ex, [&] { return there.expired(); });
          CHECK(server.lending().blocks() == (lent ? 1 : 0));
        }
      },
      {.real = false, .seeds = 5});  // there a descriptor is passed as it is
}

TEST_CASE("cache taking: a writer that is cancelled or destroyed at any step leaves no half block") {
  const auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    lender server(ex);
    {
      http_store s(ex, server.local_url());
      const auto ec = co_await write_shared(s, shared_blocks(0, 2), 0, 2);
      auto there = co_await server.memory().async_match(cache_ns, contract_keys(0, 2), as_result);
      if (there) CHECK((*there == 0 || *there == 2));
      if (there && !ec) CHECK(*there == 2);
    }
  };
  cancel_at_every_step(body, {.seeds = 50});
  destroy_at_every_step(body, {.seeds = 50});
}

TEST_CASE("cache taking: what was copied is told") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        const shared_blocks blocks(0, 3);
        CHECK(!co_await write_shared(s, blocks, 0, 3));
        auto c = co_await raw_client::connect(server.at());
        const auto page = (co_await c.ask(get("/metrics"))).body();
        CHECK(page.find("\ncokv_cache_taken_bytes_total " + std::to_string(3 * contract_layout().bytes()) + "\n") !=
              std::string::npos);
        CHECK(page.find("\ncokv_cache_passed_bytes " + std::to_string(blocks.memory().size()) + "\n") !=
              std::string::npos);
      },
      {.seeds = 5});
}

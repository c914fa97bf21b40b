// Writers that change their memory while one of its segments is copied: what is stored is what its digest is of.
#include <atomic>
#include <random>
#include <thread>

#include "write_by_reference.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const block_layout one_large{{2 << 20}};

// A block of one segment in shared memory, told with the digest that it has now.
struct large_block {
  explicit large_block(std::uint8_t seed) : memory(allocate_shared(one_large.bytes()).value()) {
    for (std::size_t i = 0; i < memory.size(); ++i)
      memory.data()[i] = static_cast<std::byte>((i * 131 >> 7) + i + seed);
    digest = digest_of(memory.bytes());
  }
  std::string body(std::uint32_t key) const {
    const block_places where{.memory = 0, .generation = 1, .layers = 1, .lives = {0}, .places = {{0, digest}}};
    stream_writer out({.ns = cache_ns, .generation = 1, .layout = one_large, .keys = contract_keys(key, 1)});
    return text(out.begin()) + text(where.encode()) + end_of_places();
  }

  buffer memory;
  std::uint64_t digest = 0;
};

// Whether it is stored; and then it is what was told of.
awaitable<bool> stored_as_told(lender& server, std::uint32_t key, const large_block& block) {
  auto reader = co_await server.memory().async_open_read(cache_ns, one_large, contract_keys(key, 1));
  if (reader->found() == 0) co_return false;
  auto into = buffer::host(one_large.bytes());
  CHECK(co_await reader->async_read(0, {into}) == 1);  // verified by what the store keeps
  CHECK(digest_of(into.bytes()) == block.digest);
  co_return true;
}

}  // namespace

TEST_CASE("cache taking: bytes that change between the parts of a segment's copy are stored as told, or not at all") {
  int stored = 0, refused = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex, {.limit = 16 << 20});
        for (std::uint32_t key = 0; key < 4; ++key) {
          large_block block(static_cast<std::uint8_t>(key));
          auto c = co_await raw_client::connect(server.socket());
          c.stream.attach(export_shared(block.memory)->file);
          co_await c.send(post(write_path(), block.body(key)));
          std::mt19937 random(key);
          bool over = false;
          const auto change = [&]() -> awaitable<void> {  // anywhere: what is copied already, and what is not
            for (int i = 0; !over && i < 1000; ++i) {
              for (unsigned n = random() % 8; n != 0; --n) co_await asio::post(ex, asio::deferred);
              if (!over) block.memory.data()[random() % block.memory.size()] ^= std::byte{1};
            }
          };
          unsigned code = 0;
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            group.spawn(change());
            code = co_await outcome(c);
            over = true;
          });
          CHECK(bool(v));
          CHECK((code == 200 || code == 422));
          CHECK(co_await stored_as_told(server, key, block) == (code == 200));
          ++(code == 200 ? stored : refused);
        }
      },
      {.seeds = 20});
  CHECK(refused > 0);
  MESSAGE(stored, " stored, ", refused, " refused");
}

TEST_CASE("cache taking: a byte that another thread changes all the time is stored as told, or not at all") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    lender server(ex, {.limit = 16 << 20});
    large_block block(7);
    std::atomic<bool> over = false;
    // There and back: it may be one when it is copied, and the other when it is digested. Two, so that one of them runs
    // beside the copy where there are few processors.
    const auto change = [&] {
      for (auto* const at = reinterpret_cast<volatile std::uint8_t*>(block.memory.data() + 100'000); !over;)
        *at = *at ^ 1;
    };
    std::thread one(change), other(change);
    int stored = 0, refused = 0;
    for (std::uint32_t n = 0; n < 200; ++n) {
      const auto code =
          co_await say(server.socket(), export_shared(block.memory)->file, post(write_path("&force=1"), block.body(0)));
      CHECK((code == 200 || code == 422));
      ++(code == 200 ? stored : refused);
      if (stored != 0) CHECK(co_await stored_as_told(server, 0, block));
    }
    over = true;
    one.join();
    other.join();
    MESSAGE(stored, " stored, ", refused, " refused");
  });
}

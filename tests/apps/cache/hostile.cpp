// Uploads whose frames lie about their lengths: a refusal that says so, in bounded memory, and nobody else hears of it.
#include <malloc.h>

#include <boost/json/parse.hpp>

#include "../http_fixture.hpp"
#include "fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint64_t endless = std::uint64_t{1} << 63;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint64_t heap() {
  const auto now = ::mallinfo2();
  return now.uordblks + now.hblkhd;
}

}  // namespace

TEST_CASE("cache hostile: a frame of 2^63 bytes is refused at its header, and costs nobody else anything") {
  const auto path = "/v1/kv/" + cache_ns.hex() + ":write";
  const stream_begin about{.ns = cache_ns, .generation = 7, .layout = contract_layout(), .keys = contract_keys(0, 2)};
  const auto frame = [&](frame_type type, std::uint64_t sequence) {
    return text_of(encode({.type = type,
                           .ns = cache_ns,
                           .key = type == frame_type::segment ? about.keys[0] : block_key(),
                           .generation = about.generation,
                           .sequence = sequence,
                           .length = endless}));
  };
  stream_writer sound(about);
  const auto begin = text_of(sound.begin());
  auto vast = about;
  vast.layout = {{endless, 16}};
  const struct {
    const char* what;
    std::string bytes;
  } table[] = {
      {"a begin frame", frame(frame_type::begin, 0)},
      {"a segment", begin + frame(frame_type::segment, 1)},
      {"a missing frame", begin + frame(frame_type::missing, 1)},
      {"an end frame", begin + frame(frame_type::end, 1)},
      {"an error frame", begin + frame(frame_type::error, 1)},
      {"an ack", frame(frame_type::ack, 0)},
      {"a layout", text_of(stream_writer(vast).begin())},
  };
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex);
        http_store other(ex, server.url());
        CHECK(!co_await write_blocks(other, cache_ns, 0, 3));
        for (const auto& row : table)
          for (const bool chunked : {false, true}) {
            CAPTURE(row.what);
            CAPTURE(chunked);
            const auto body = row.bytes + std::string(1 << 20, 'x');
            std::string request = "POST " + path + " HTTP/1.1\r\nHost: x\r\n";
            if (chunked) {
              char size[20];
              std::snprintf(size, sizeof size, "%zx", body.size());
              request += "Transfer-Encoding: chunked\r\n\r\n" + std::string(size) + "\r\n" + body + "\r\n0\r\n\r\n";
            } else {
              request += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
            }
            auto liar = co_await raw_client::connect(server.at());
            const auto before = heap();
            std::uint64_t most = 0;
            response told;
            auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
              group.spawn([&]() -> awaitable<void> { co_await liar.send(request); });
              told = co_await liar.read();
              most = heap();
              group.cancel();
            });
            CHECK(told.result_int() >= 400);
            CHECK(told.result_int() < 500);
            const auto error = boost::json::parse(told.body()).at("error");
            CHECK(error.at("message").as_string().size() > 20);
            CHECK(most < before + (4 << 20));
            CHECK(co_await read_blocks(other, cache_ns, 0, 3) == 3);
            CHECK(server.memory().info().blocks == 3);
          }
        CHECK(!co_await write_blocks(other, cache_ns, 10, 1));
        CHECK(server.memory().info().leased_bytes == 0);
      },
      {.seeds = 2});
}

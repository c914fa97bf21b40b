// Clients of a cache server, by the hundred, in one process: they write, read, look and remove, break off in the middle,
// and read slowly on purpose. A block's content is a function of its key, so every byte that is read is compared, and one
// wrong byte ends the run.
//
//     cokv_cache_clients mix    URL [--clients 1000] [--slow 50] [--local 100] [--seconds 600] [--seed 1] [--chains 2000]
//     cokv_cache_clients fill   URL [--clients 16] [--seed 1]      until the server is gone; prints "CHAIN BLOCKS" a write
//     cokv_cache_clients verify URL < lines of fill                every block of every line has to be there, and right
//
// Prints one JSON object (mix and verify); exit code 1 for a wrong byte, or a block that is not there (verify).
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/write.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <random>

#include "cokv/kvstream/frame_stream.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace {

using namespace cokv;
using namespace std::chrono_literals;

struct settings {
  std::string url;
  std::size_t clients = 1000, slow = 50, local = 0;
  std::uint64_t seconds = 600, seed = 1, chains = 2000;
};

// What a chain looks like: mostly small, some of megabytes.
struct shape {
  block_layout layout;
  std::uint32_t blocks = 1;
};

shape shape_of(std::uint64_t chain) {
  switch (chain % 20) {
    case 0:
      return {{{65536, 65536, 32768, 65536}}, 24};
    case 1:
    case 2:
    case 3:
    case 4:
      return {{{16384, 16384, 16384, 16384, 16384, 16384}}, 8};
    default:
      return {{{1024, 4096, 512}}, static_cast<std::uint32_t>(1 + chain % 7)};
  }
}

namespace_id namespace_of(const shape& s) {
  return namespace_id::of("soak", geometry::attention(s.layout.layers(), 1, 8, dtype::f32));
}

std::vector<block_key> keys_of(std::uint64_t chain, std::uint32_t blocks) {
  return chain_keys(std::vector<std::int32_t>(blocks, 1), 1, "soak " + std::to_string(chain));
}

// Counts from a start that key and layer give; one multiplication a word.
class content {
 public:
  content(const block_key& key, std::uint32_t layer) {
    std::memcpy(&at_, key.bytes.data(), sizeof at_);
    at_ ^= layer * 0xD1B54A32D192ED03ull;
  }
  void fill(std::span<std::byte> to) const {
    each(to.size(), [&](std::size_t i, std::uint64_t word, std::size_t n) { std::memcpy(to.data() + i, &word, n); });
  }
  bool matches(std::span<const std::byte> bytes) const {
    bool same = true;
    each(bytes.size(), [&](std::size_t i, std::uint64_t word, std::size_t n) {
      same &= std::memcmp(bytes.data() + i, &word, n) == 0;
    });
    return same;
  }

 private:
  template <class F>
  void each(std::size_t bytes, F&& f) const {
    std::uint64_t x = at_;
    for (std::size_t i = 0; i < bytes; i += sizeof x, ++x) {
      const auto mixed = x * 0x9E3779B97F4A7C15ull;
      f(i, mixed ^ (mixed >> 29), std::min(bytes - i, sizeof x));
    }
  }
  std::uint64_t at_ = 0;
};

struct counts {
  std::uint64_t writes = 0, deferred = 0, reads = 0, matches = 0, removes = 0, broken_off = 0, slow_reads = 0;
  std::uint64_t blocks_read = 0, bytes_read = 0, bytes_written = 0, missing = 0, wrong = 0, lent_reads = 0;
  std::map<std::string, std::uint64_t> errors;
  std::map<std::string, std::vector<float>> ms;  // by kind of operation

  void failed(error_code ec) { ++errors[ec.message()]; }
};

using random_source = std::mt19937_64;

std::vector<buffer> segments_of(const shape& s, std::uint32_t layer, std::size_t blocks, bool shared = false) {
  const auto bytes = s.layout.segments[layer];
  const auto memory = shared ? allocate_shared(bytes * blocks).value() : buffer::host(bytes * blocks);
  std::vector<buffer> out;
  for (std::size_t i = 0; i < blocks; ++i) out.push_back(memory.slice(i * bytes, bytes));
  return out;
}

enum class until { end, middle };  // where an operation is broken off by whoever began it

awaitable<error_code> write_chain(store& to, std::uint64_t chain, std::uint32_t blocks, bool deferred, until stop,
                                  counts& n, bool shared = false) {
  const auto s = shape_of(chain);
  const auto keys = keys_of(chain, blocks);
  auto writer = co_await to.async_open_write(namespace_of(s), s.layout, keys, {.deferred = deferred, .stable = shared},
                                             as_result);
  if (!writer) co_return writer.error();
  for (std::uint32_t layer = 0; layer < s.layout.layers(); ++layer) {
    if (stop == until::middle && layer == s.layout.layers() / 2) co_return error_code();
    auto segments = segments_of(s, layer, blocks, shared);
    for (std::size_t i = 0; i < blocks; ++i) content(keys[i], layer).fill(segments[i].bytes());
    if (auto w = co_await (*writer)->async_write(layer, std::move(segments), as_result); !w) co_return w.error();
    n.bytes_written += blocks * s.layout.segments[layer];
  }
  auto visible = co_await (*writer)->async_commit(as_result);
  co_return visible ? error_code() : visible.error();
}

// Leading blocks that were there and right in all layers.
awaitable<result<std::size_t>> read_chain(store& from, std::uint64_t chain, std::uint32_t blocks, until stop,
                                          counts& n) {
  const auto s = shape_of(chain);
  const auto keys = keys_of(chain, blocks);
  auto reader = co_await from.async_open_read(namespace_of(s), s.layout, keys, as_result);
  if (!reader) co_return reader.error();
  auto good = (*reader)->found();
  for (std::uint32_t layer = 0; layer < s.layout.layers() && good != 0; ++layer) {
    if (stop == until::middle && layer == s.layout.layers() / 2) co_return std::size_t{0};
    auto into = segments_of(s, layer, blocks);
    auto arrived = co_await (*reader)->async_read(layer, into, as_result);
    if (!arrived) co_return arrived.error();
    good = *arrived;
    for (std::size_t i = 0; i < good; ++i) {
      if (!content(keys[i], layer).matches(into[i].bytes())) ++n.wrong;
      n.bytes_read += into[i].size();
    }
  }
  n.blocks_read += good;
  co_return good;
}

// Half of a chain's blocks are asked for as often as the rest of all: some are hot, most are not.
std::uint64_t some_chain(random_source& random, const settings& s) {
  const auto all = std::uniform_int_distribution<std::uint64_t>(0, s.chains - 1)(random);
  return random() % 2 ? all : all % std::max<std::uint64_t>(1, s.chains / 50);
}

// On the server's machine: by reference, where the server offers it.
awaitable<void> mixed_client(const settings& s, std::uint64_t seed, time_point end, bool local, counts& n) {
  const auto ex = co_await asio::this_coro::executor;
  auto& time = clock::of(ex);
  random_source random(seed);
  http_store remote(ex, s.url, {.max_connections = 1, .shared_memory = local});
  co_await time.async_wait_for(std::chrono::milliseconds(random() % 2000));  // not all at once
  while (time.now() < end) {
    const auto chain = some_chain(random, s);
    const auto form = shape_of(chain);
    const auto blocks = static_cast<std::uint32_t>(1 + random() % form.blocks);
    const auto dice = random() % 100;
    const auto stop = random() % 12 == 0 ? until::middle : until::end;
    const auto start = time.now();
    const char* kind = "";
    error_code ec;
    if (dice < 35) {
      kind = "write";
      const bool deferred = dice < 15;
      ec = co_await write_chain(remote, chain, blocks, deferred, stop, n, local && random() % 2);
      ++(stop == until::middle ? n.broken_off : deferred ? n.deferred : n.writes);
    } else if (dice < 85) {
      kind = "read";
      auto good = co_await read_chain(remote, chain, blocks, stop, n);
      ec = good ? error_code() : good.error();
      ++(stop == until::middle ? n.broken_off : n.reads);
    } else if (dice < 97) {
      kind = "match";
      ec = (co_await remote.async_match(namespace_of(form), keys_of(chain, blocks), as_result)).error();
      ++n.matches;
    } else {
      kind = "remove";
      auto gone = co_await remote.async_remove(namespace_of(form), keys_of(chain, blocks).back(), as_result);
      if (!gone && gone.error() != errc::not_found) ec = gone.error();
      ++n.removes;
    }
    if (ec) {
      n.failed(ec);
      co_await time.async_wait_for(100ms);
    } else if (stop == until::end) {
      n.ms[kind].push_back(std::chrono::duration<float, std::milli>(time.now() - start).count());
    }
  }
  n.lent_reads += remote.info().lent_reads;
}

// Takes what comes of an answer in drops, and looks at all of it.
awaitable<void> slow_read(byte_stream& stream, std::uint64_t chain, time_point end, random_source& random, counts& n) {
  const auto ex = co_await asio::this_coro::executor;
  auto& time = clock::of(ex);
  const auto s = shape_of(chain);
  const auto key = keys_of(chain, 1).front();
  const auto ask = "GET /v1/kv/" + namespace_of(s).hex() + "/" + key.hex() + " HTTP/1.1\r\nHost: soak\r\n\r\n";
  auto [sent, bytes] = co_await asio::async_write(stream, asio::buffer(ask), asio::as_tuple(asio::deferred));
  if (sent) co_return n.failed(sent);
  std::string all;
  for (char piece[4096]; time.now() < end;) {
    const auto want = 64 + random() % (sizeof piece - 64);
    auto [ec, got] = co_await stream.async_read_some(asio::buffer(piece, want), asio::as_tuple(asio::deferred));
    if (ec) break;
    all.append(piece, got);
    co_await time.async_wait_for(std::chrono::milliseconds(random() % 60));
    const auto head = all.find("\r\n\r\n");
    const auto length = all.find("Content-Length: ");
    if (head != all.npos && length < head && all.size() >= head + 4 + std::stoull(all.substr(length + 16))) break;
  }
  ++n.slow_reads;
  const auto head = all.find("\r\n\r\n");
  if (!all.starts_with("HTTP/1.1 200") || head == all.npos) co_return;
  stream_parser parser;
  auto in = std::as_bytes(std::span(all)).subspan(head + 4);
  std::vector<std::byte> segment;
  for (auto event = parser.next(in); event != stream_event::more && event != stream_event::failed;
       event = parser.next(in)) {
    if (event == stream_event::segment) {
      segment.resize(s.layout.segments[parser.layer()]);
      parser.into(segment);
    }
    if (event == stream_event::arrived && !content(key, parser.layer()).matches(segment)) ++n.wrong;
    if (event == stream_event::ended) break;
  }
}

awaitable<void> slow_client(const settings& s, endpoint at, std::uint64_t seed, time_point end, counts& n) {
  const auto ex = co_await asio::this_coro::executor;
  random_source random(seed);
  while (clock::of(ex).now() < end) {
    auto stream = co_await network::of(ex).async_connect(at, as_result);
    if (stream) {
      co_await slow_read(*stream, some_chain(random, s), end, random, n);
    } else {
      n.failed(stream.error());
      co_await clock::of(ex).async_wait_for(500ms);
    }
  }
}

double quantile(std::vector<float>& ms, double q) {
  if (ms.empty()) return 0;
  const auto at = ms.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(ms.size() - 1));
  std::nth_element(ms.begin(), at, ms.end());
  return *at;
}

void print(counts& n) {
  boost::json::object errors, latency;
  for (auto& [what, times] : n.errors) errors[what] = times;
  for (auto& [kind, ms] : n.ms)
    latency[kind] = boost::json::object{{"count", ms.size()},
                                        {"p50_ms", quantile(ms, 0.5)},
                                        {"p99_ms", quantile(ms, 0.99)},
                                        {"max_ms", quantile(ms, 1)}};
  std::cout << boost::json::serialize(boost::json::object{{"writes", n.writes},
                                                          {"deferred_writes", n.deferred},
                                                          {"reads", n.reads},
                                                          {"matches", n.matches},
                                                          {"removes", n.removes},
                                                          {"broken_off", n.broken_off},
                                                          {"slow_reads", n.slow_reads},
                                                          {"blocks_read", n.blocks_read},
                                                          {"bytes_read", n.bytes_read},
                                                          {"bytes_written", n.bytes_written},
                                                          {"lent_reads", n.lent_reads},
                                                          {"missing_blocks", n.missing},
                                                          {"wrong_segments", n.wrong},
                                                          {"latency", std::move(latency)},
                                                          {"errors", std::move(errors)}})
            << std::endl;
}

awaitable<void> mix(const settings& s, endpoint at, counts& n) {
  const auto end = clock::of(co_await asio::this_coro::executor).now() + std::chrono::seconds(s.seconds);
  auto done = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t i = 0; i < s.clients; ++i)
      group.spawn(i < s.slow ? slow_client(s, at, s.seed * 1000003 + i, end, n)
                             : mixed_client(s, s.seed * 1000003 + i, end, i < s.slow + s.local, n));
    co_return;
  });
  if (!done) throw boost::system::system_error(done.error());
}

// Chains of its own each, so that none is written twice; what is printed was acknowledged.
awaitable<void> fill(const settings& s, counts& n) {
  auto done = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t i = 0; i < s.clients; ++i)
      group.spawn([&s, &n, i]() -> awaitable<void> {
        http_store remote(co_await asio::this_coro::executor, s.url, {.max_connections = 1});
        random_source random(s.seed * 1000003 + i);
        for (std::uint64_t round = 0;; ++round) {
          const auto chain = ((s.seed * 1000 + i) * 100000 + round) * 20 + 1 + random() % 19;
          const auto blocks = shape_of(chain).blocks;
          const bool deferred = random() % 4 == 0;
          if (co_await write_chain(remote, chain, blocks, deferred, until::end, n)) co_return;
          if (!deferred) std::cout << chain << ' ' << blocks << std::endl;  // this is a promise
        }
      });
    co_return;
  });
  (void)done;
}

awaitable<void> verify(const settings& s, counts& n) {
  http_store remote(co_await asio::this_coro::executor, s.url);
  std::uint64_t chain;
  std::uint32_t blocks;
  while (std::cin >> chain >> blocks) {
    auto good = co_await read_chain(remote, chain, blocks, until::end, n);
    if (!good) n.failed(good.error());
    n.missing += blocks - (good ? *good : 0);
    ++n.reads;
  }
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  CLI::App app{"Clients of a cache server that compare every byte"};
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* what) {
    auto* command = app.add_subcommand(name, what);
    command->add_option("url", s.url)->required();
    command->add_option("--clients", s.clients);
    command->add_option("--seed", s.seed);
    return command;
  };
  auto* mixed = add("mix", "Everything at once, for a time");
  mixed->add_option("--slow", s.slow, "Of the clients, those that read slowly");
  mixed->add_option("--local", s.local, "Of the clients, those that read and write by reference, if they may");
  mixed->add_option("--seconds", s.seconds);
  mixed->add_option("--chains", s.chains);
  auto* filling = add("fill", "Writes until the server is gone, and prints what was acknowledged");
  filling->parse_complete_callback([&s, filling] {
    if (filling->count("--clients") == 0) s.clients = 16;
  });
  add("verify", "Reads what fill printed");
  CLI11_PARSE(app, argc, argv);

  const auto at = parse_endpoint(s.url.substr(s.url.find("//") + 2));
  if (!at) throw config_error(s.url + ": " + at.error().message());
  counts n;
  asio::io_context context(1);
  std::exception_ptr failed;
  asio::co_spawn(context,
                 mixed->parsed()     ? mix(s, *at, n)
                 : filling->parsed() ? fill(s, n)
                                     : verify(s, n),
                 [&](std::exception_ptr e) { failed = e; });
  context.run();
  if (failed) std::rethrow_exception(failed);
  if (!filling->parsed()) print(n);
  return n.wrong != 0 || n.missing != 0;
}

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <filesystem>

#include "cache/front.hpp"
#include "cli/cli.hpp"
#include "cli/values.hpp"
#include "cokv/kvstream/file_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/kvstream/tiered_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/size.hpp"
#include "http/serve.hpp"
#include "random_id.hpp"

namespace cokv::cli {
namespace {

struct cache_options {
  endpoint listen{"127.0.0.1", 9009};
  std::string socket;
  std::uint64_t memory = std::uint64_t{1} << 30;
  std::string directory;
  std::uint64_t disk = std::uint64_t{10} << 30;
  std::uint64_t room = std::uint64_t{256} << 20;
  std::size_t shards = 1;
  std::string api_key_file;
  std::string tls_certificate, tls_key;
};

http::api_keys load_keys(const cache_options& o) {
  if (o.api_key_file.empty()) return {};
  auto keys = http::api_keys::load(o.api_key_file);
  if (!keys.disk().empty() && o.directory.empty())
    throw config_error("--api-key-file " + o.api_key_file + ": quotas of a disk (disk=), and no --dir");
  return keys;
}

awaitable<void> run_cache(const cache_options& o, streams io) {
  const auto ex = co_await asio::this_coro::executor;
  http::server_options web;
  web.keys = load_keys(o);
  web.tls = http::load_tls(o.tls_certificate, o.tls_key);
  const auto events = std::make_shared<cache::event_log>(random_number());
  // A layer may be computed for longer than any network is slow.
  web.limit.stall = std::chrono::seconds(60);

  std::unique_ptr<store> blocks =
      std::make_unique<memory_store>(ex, memory_store_options{.limit_bytes = o.memory,
                                                              .quotas = web.keys.memory(),
                                                              .readable = !o.socket.empty(),
                                                              .on_change = events->of("memory")});
  auto& memory = static_cast<memory_store&>(*blocks);
  file_store* kept = nullptr;
  std::vector<cache::service::tier> tiers{{"memory", blocks.get()}};
  if (!o.directory.empty()) {
    auto disk = co_await file_store::async_open(
        ex,
        {.directory = o.directory, .limit_bytes = o.disk, .quotas = web.keys.disk(), .on_change = events->of("disk")},
        as_result);
    if (!disk) throw config_error("--dir " + o.directory + ": " + disk.error().message());
    kept = disk->get();
    tiers.push_back({"disk", kept});
    blocks = std::make_unique<tiered_store>(std::move(blocks), std::move(*disk));
  }
  std::shared_ptr<cache::lending> lending;
  if (!o.socket.empty()) {
    const auto id = random_number() | 1;
    lending = std::make_shared<cache::lending>(memory.lent(), id, o.memory / 2, o.socket);
  }
  cache::front server(ex, *blocks, std::move(tiers),
                      {.listen = o.listen,
                       .socket = o.socket,
                       .shards = o.shards,
                       .web = std::move(web),
                       .service = {.room = o.room, .events = events, .lending = lending}});
  co_await server.start();
  const auto reload = [&] {
    auto keys = load_keys(o);
    auto tls = http::load_tls(o.tls_certificate, o.tls_key);
    server.set_tls(tls);
    memory.set_quotas(keys.memory());
    if (kept) kept->set_quotas(keys.disk());
    server.set_keys(keys);
  };
  const http::served_by served{server.local_endpoint(), server.secure(),
                               [&]() -> awaitable<void> { return server.run(); },
                               [&](duration grace) { server.drain(grace); }};
  co_await http::serve_until_signalled(served, "cokv cache", io.out, std::chrono::seconds(30), reload);
}

int cache_command(const cache_options& o, streams io) {
  asio::io_context context(1);
  std::exception_ptr failed;
  asio::co_spawn(context, run_cache(o, io), [&](std::exception_ptr e) { failed = e; });
  context.run();
  if (failed) std::rethrow_exception(failed);
  return 0;
}

}  // namespace

void add_cache(CLI::App& app, action& chosen) {
  auto options = std::make_shared<cache_options>();
  auto* command = app.add_subcommand("cache", "Serves a remote KV cache over HTTP");
  add_endpoint(*command, "--listen", options->listen, "Where to listen; port 0 takes a free one");
  command
      ->add_option(
          "--socket", options->socket,
          "A Unix socket beside --listen, of this user's processes: there they may read the blocks in --memory "
          "where they lie, which clients of this machine do by themselves. It has a part of --room, as a shard has")
      ->type_name("PATH");
  add_size(*command, "--memory", options->memory, "KV blocks kept in memory");
  auto* directory = command->add_option("--dir", options->directory, "Folder in which KV blocks outlive the process")
                        ->type_name("DIR");
  add_size(*command, "--disk", options->disk, "KV blocks kept in --dir")->needs(directory);
  add_size(*command, "--room", options->room,
           "Memory for transfers under way, beside --memory; shards have equal parts of it");
  command
      ->add_option("--shards", options->shards,
                   "Threads that receive, digest and send, beside the one that decides; 1: that one alone")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      ->add_option("--api-key-file", options->api_key_file,
                   "Keys that may use the server, one a line, with their rights and quotas; none: everyone may. "
                   "SIGHUP reads it again")
      ->type_name("FILE");
  add_tls(*command, options->tls_certificate, options->tls_key);
  command->footer("A SIZE is bytes or has a unit: 512MiB, 4GiB, 1.5GB.");
  command->callback([options, &chosen] {
    const std::pair<const char*, std::uint64_t> sizes[] = {
        {"--memory", options->memory}, {"--disk", options->disk}, {"--room", options->room}};
    for (const auto& [flag, bytes] : sizes)  // a block of any model but a toy is larger
      if (bytes < (1 << 20)) throw CLI::ValidationError(flag, format_size(bytes) + ": takes at least 1MiB");
    if (!options->socket.empty()) options->socket = std::filesystem::absolute(options->socket).string();
    // It is named in a field of HTTP answers.
    if (std::ranges::any_of(options->socket, [](unsigned char c) { return c < 0x20 || c == 0x7f; }) ||
        options->socket.ends_with(' '))
      throw CLI::ValidationError("--socket", "a path without control characters, and no blank at its end");
    check_memory("--memory", options->memory);
    check_memory("--room", options->room);
    chosen = [options](streams io) { return cache_command(*options, io); };
  });
}

}  // namespace cokv::cli

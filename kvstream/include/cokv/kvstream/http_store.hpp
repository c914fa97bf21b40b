// A store behind a cache server (`cokv cache`), spoken to over kept HTTP/1.1 connections. A prompt's blocks move in one
// exchange: layers are sent as they are written and read straight into the caller's buffers, each segment verified on
// arrival. A server that is down, slow or killed costs an error_code within the deadlines below, never a wrong byte.
//
//     cokv::http_store remote(ex, "http://127.0.0.1:9009");
//     std::size_t stored = co_await remote.async_match(ns, keys);               // one round trip
//     auto reader = co_await remote.async_open_read(ns, g.layout(), keys);      // one round trip; then bytes
//
// The table of operations is store.hpp's. Errors beside those: errc::deadline, errc::protocol (what came was no answer
// of a cache), errc::permission_denied (the API key), errc::queue_full, the system's (connection_refused, ...), and of https:// those
// of TLS (tls_category), each with its own words.
// After a connection was refused, operations fail with errc::unavailable at once, until the back-off is over. A writer
// or a reader holds one connection until it is spent or destroyed; a cancelled or failed one closes it, and the server
// then shows nothing of what it had received.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv {

namespace detail {
struct http_remote;
}

struct http_store_options {
  std::string api_key;                             // sent as "Authorization: Bearer ..."; empty: none
  std::string ca_file;                             // PEM: who may vouch for an https:// server; empty: the system's
  std::size_t max_connections = 16;                // operations beyond wait for one, at most `connect`
  std::size_t max_blocks = 65536;                  // in one writer or reader; beyond: errc::too_large
  duration connect = std::chrono::seconds(1);      // until the server accepts
  duration first_byte = std::chrono::seconds(5);   // until it begins to answer
  duration idle = std::chrono::seconds(5);         // without a byte moved, while an operation waits for one
  duration keep_alive = std::chrono::seconds(20);  // an unused connection is closed after so long
  duration back_off_min = std::chrono::milliseconds(50);
  duration back_off_max = std::chrono::seconds(5);
  // none: segments go and come without digests, and nobody looks whether they are right. The server has to want that too;
  // errc::invalid_argument when it does not.
  digest_algorithm digest = digest_algorithm::xxh3_64;
  // Of a server on this machine that lends its memory (`cokv cache --socket`), blocks are read where they lie: a reader
  // copies from there, or gives views of it. false: bytes are sent as from any other.
  bool shared_memory = true;
};

class http_store final : public store {
 public:
  // Connects when first used. Throws config_error when the URL is not http(s)://HOST[:PORT] or
  // unix:///PATH (a server's --socket), ca_file can't be used or the key can't be sent.
  http_store(asio::any_io_executor ex, std::string_view url, http_store_options options = {});
  // Closes the connections: operations under way complete with an error, writers and readers fail.
  ~http_store() override;

  // Whether the URL is of a server on this machine for certain, by what it says alone: unix://, localhost, or an address of
  // loopback.
  static bool on_this_machine(std::string_view url);

  // What this object has seen: limit_bytes, used_bytes and blocks are the server's business and 0 here.
  store_info info() const override;

 protected:
  void do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) override;
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                     writer_handler handler) override;
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler handler) override;
  void do_remove(namespace_id ns, block_key key, done_handler handler) override;

 private:
  std::shared_ptr<detail::http_remote> state_;
};

}  // namespace cokv

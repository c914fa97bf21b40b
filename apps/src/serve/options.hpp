// What `cokv serve` can be told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "cokv/runtime/net.hpp"

namespace cokv::serve {

struct options {
  checkpoint_options model;
  std::string name;           // in requests; empty: the folder's name
  std::string role = "both";  // prefill, decode or router: one of several processes
  // A router's workers, the key that it shows them, and milliseconds: between two questions how they are, and without an
  // answer until one is taken for dead.
  std::vector<std::string> prefill, decode;
  std::string worker_key_file;
  std::uint32_t heartbeat = 500, dead_after = 1500;
  // A worker's router that it goes to by itself, and the key for it.
  std::vector<std::string> join;  // routers
  std::string join_key_file;
  // A model in parts: stages, ranks of each, this process's number among all of them, where they find each other, and steps under
  // way at once (0: as many as stages).
  std::uint32_t pipeline = 1, tensor = 1, rank = 0, microbatches = 0;
  std::vector<std::string> ranks, spares;
  std::uint32_t rejoin_within = 60;         // seconds that requests wait for a lost worker's place to be taken
  std::vector<std::uint32_t> stage_starts;  // each stage's first layer; empty: as equal as may be
  // A decode worker's doors for KV; empty: a socket of this machine and a port. `advertise`: what others call the host.
  std::vector<std::string> links;
  std::string advertise;
  // Bytes that a prefill worker lends; of a decode worker, who lends it memory, how many layers it keeps there (0: as many as
  // hide) and the key for those.
  std::uint64_t lend_memory = 0;
  std::vector<std::string> borrow_from;
  std::uint32_t borrow_layers = 0;
  std::string borrow_key_file;
  bool convert_kv = false;   // KV of another element type is taken, and given
  std::uint32_t lease = 30;  // seconds without a sign of a prompt's sender
  // Copies of answers: how many a router wants of each; bytes that a worker keeps for others, and milliseconds that it waits
  // for those who keep its own.
  std::string standby_of, standby_key_file;       // of a router: for which other one it stands by
  std::string policy = "prefix";                  // or least-loaded, slo
  std::uint32_t slo_ttft = 2000, slo_tpot = 100;  // milliseconds
  std::uint32_t replicas = 0;                     // of a model in parts, of each process's KV, at the next: 0 or 1
  std::uint64_t replica_memory = std::uint64_t{1} << 30;
  std::uint32_t replica_patience = 100;
  std::string replicate_to, replicate_key_file;  // caches for copies instead, as kv_remote
  endpoint listen{"127.0.0.1", 8000};
  std::string api_key_file;
  std::string tls_certificate, tls_key;  // PEM files; empty: plain HTTP
  std::string dtype = "bf16";
  std::string device = "cpu";
  int threads = 0;  // of the CPU device; 0: all
  bool batch_invariant = false;
  std::uint32_t kv_blocks = 0;  // 0: for two sequences of the greatest length, at most 1 GiB
  std::uint32_t block_tokens = 16;
  std::uint32_t max_batched_tokens = 1024;
  std::uint32_t max_running = 256;
  std::uint32_t max_requests = 4096;
  std::uint32_t max_sequence = 0;  // 0: what the model was made for
  bool async_scheduling = false;
  std::uint64_t swap = 0;            // bytes; 0: nobody takes turns
  std::string swap_by = "sequence";  // or microbatch
  std::uint64_t kv_host = 0;         // bytes; 0: no such tier
  std::string kv_dir;                // empty: no such tier
  std::uint64_t kv_disk = std::uint64_t{10} << 30;
  bool kv_direct = false;          // past the system's cache
  std::string kv_policy = "auto";  // or always
  std::string kv_remote;           // URLs of caches by comma, or "@FILE", one a line there; empty: no such tier
  std::string kv_remote_key_file;
  std::string kv_remote_ca;         // PEM; empty: whom the system trusts
  std::uint32_t kv_remote_ttl = 0;  // seconds that blocks live in Redis; 0: for ever
  std::string trace;                // a file; empty: none is written
  std::uint32_t grace = 30;         // seconds that requests in flight have to finish at the end
};

}  // namespace cokv::serve

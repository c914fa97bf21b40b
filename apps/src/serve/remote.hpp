// The KV tier that --kv-remote names: one cache server, a Redis or a cluster of them, or several nodes whose blocks are placed by their names
// (cluster_store.hpp), told once or in a file that is read again on SIGHUP.
//
//     auto remote = serve::remote::open(ex, o);              // config_error naming the flag
//     tiers.push_back({.name = "remote", .blocks = remote->blocks()});
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/cluster_store.hpp"
#include "http/metrics.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

// What a comma and a line separate; empty ones, and lines that begin with '#', are left out, and so is a '/' at the end.
// What follows a comma without a scheme belongs to what stands before it.
std::vector<std::string> node_urls(std::string_view text);

// Whether one of them is on this machine, and so may take KV from memory that it is shown.
bool any_on_this_machine(const std::vector<std::string>& urls);

class remote {
 public:
  // `flag`: who named it, for what can't be used.
  static std::shared_ptr<remote> open(const asio::any_io_executor& ex, const options& o,
                                      const std::string& flag = "--kv-remote");

  const std::shared_ptr<store>& blocks() const noexcept { return blocks_; }
  const cluster_store* nodes() const noexcept { return nodes_.get(); }  // null: one server, told by its URL

  bool on_this_machine() const;  // one of its servers, when it was opened or read again last

  // Takes the nodes that the file names now; what can't be used changes nothing. Logs what came of it. Nothing where no
  // file was named.
  void reload();

 private:
  remote(const asio::any_io_executor& ex, const options& o);
  std::vector<cluster_node> read_nodes() const;
  std::shared_ptr<store> make(const std::string& url) const;

  asio::any_io_executor ex_;
  std::string named_;  // by the flag
  std::string api_key_;
  std::string ca_file_;
  std::chrono::seconds ttl_;
  std::shared_ptr<cluster_store> nodes_;
  std::shared_ptr<store> blocks_;
};

// A line of counters a node; `r` outlives the page's use.
void add_node_metrics(http::metrics& page, std::shared_ptr<const remote> r);

}  // namespace cokv::serve

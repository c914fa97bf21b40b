// Several stores as one: each block lies on one of them, which rendezvous hashing picks by the block's stretch
// (rendezvous.hpp, block_key.hpp), so that a prompt takes few requests and prompts spread over all. Whoever names the
// same nodes finds the same blocks; nobody keeps a table.
//
//     cokv::cluster_store all(ex, {{"http://a:9009", a}, {"http://b:9009", b}});
//     co_await all.async_match(ns, keys);                 // both asked at once, one prefix
//     all.set_nodes({{"http://a:9009"}, {"http://b:9009"}, {"http://c:9009", c}});   // a third of the blocks is missing
//
// A request goes to all nodes that it concerns at once, each within its budget, and what they have comes together as
// one prefix, layer by layer. A node that fails, or is too late, is left alone for a while that doubles with each failed
// try; meanwhile its share is missing, and nobody waits for it. Then one operation tries it again.
//
// | operation        | with some nodes bad                                                                          |
// |------------------|----------------------------------------------------------------------------------------------|
// | async_match      | the prefix ends at the first block of a bad node; no error                                    |
// | async_open_read, | the same: nothing behind that block is asked for; a node that fails under way ends the prefix |
// | async_read       | at its first block                                                                           |
// | async_open_write | succeeds if any node takes its share; errc::partial when none of them does                    |
// | async_write      | goes on as long as any node takes its share; then errc::partial                               |
// | async_commit     | errc::partial: the other nodes' blocks are visible, keeps(i) says which; errc::store_full      |
// |                  | when all that is missing is so for want of room                                               |
// | async_remove,    | errc::unavailable                                                                            |
// | async_layout     |                                                                                              |
//
// With all nodes bad every operation fails with the last one's error, or errc::unavailable at once. The rest of the
// table is store.hpp's. Readers give no views.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv {

namespace detail {
struct cluster_state;
}

struct cluster_node {
  std::string name;               // what places blocks: the same wherever the node is used
  std::shared_ptr<store> blocks;  // on the cluster's context
};

struct cluster_store_options {
  duration lookup_budget = std::chrono::milliseconds(250);  // for a node to answer a match or to open a read
  duration read_budget = std::chrono::seconds(5);           // to give a layer
  duration write_budget = std::chrono::seconds(10);         // for each step of a write, for a removal
  duration first_backoff = std::chrono::seconds(1);         // a failed node is left alone so long, doubled each time,
  duration most_backoff = std::chrono::seconds(30);         // up to this
  std::function<void(std::string_view node, error_code why)> on_node_bad = {};  // once, when it goes bad
  std::function<void(std::string_view node)> on_node_good = {};                 // once, when it is back
};

// What a node has done since it was named.
struct cluster_node_info {
  std::string name;
  bool bad = false;                  // left alone for now
  std::uint64_t errors = 0;          // failed operations, late ones included
  std::uint64_t passed_by = 0;       // operations that did not ask it, as it was bad
  std::uint64_t hit_blocks = 0;      // found by lookups and readers
  std::uint64_t missed_blocks = 0;   // asked of it and not found
  std::uint64_t read_blocks = 0;     // that arrived whole
  std::uint64_t written_blocks = 0;  // that it has taken
  std::uint64_t lost_blocks = 0;     // that were to be written and it did not take
  store_info stored;                 // of its store
};

class cluster_store final : public store {
 public:
  static constexpr std::size_t max_nodes = 256;

  // Throws config_error when there is no node, one without a store or a name, a name twice, or more than max_nodes.
  cluster_store(asio::any_io_executor ex, std::vector<cluster_node> nodes, cluster_store_options options = {});
  ~cluster_store() override;

  // From now on these. A node that is there already keeps its health and counters, and its store unless another one is
  // given; operations, readers and writers under way end on the old nodes. Throws as the constructor, and then nothing
  // has changed.
  void set_nodes(std::vector<cluster_node> nodes);
  std::vector<cluster_node_info> nodes() const;  // as they were given

  // The sum over all nodes, those that went included; a block that two writers brought to two nodes counts twice.
  store_info info() const override;

 protected:
  void do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) override;
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                     writer_handler handler) override;
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler handler) override;
  void do_remove(namespace_id ns, block_key key, done_handler handler) override;
  void do_layout(namespace_id ns, block_key key, layout_handler handler) override;
  void do_settle(done_handler handler) override;  // of all nodes; one that fails is not waited for

 private:
  std::shared_ptr<detail::cluster_state> state_;  // operations under way hold it
};

}  // namespace cokv

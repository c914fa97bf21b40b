// A host of a simulated cluster: a name on the network, a disk, and an executor whose handlers can be dropped together,
// as if its process had been killed.
//
//     cokv::sim::node server(context, "cache");
//     asio::co_spawn(server.get_executor(), serve(), asio::detached);
//     server.kill();                                   // its handlers, its sockets, what its disk had not synced
//     server.start();                                  // the same disk, nothing else
#pragma once

#include <memory>
#include <string>

#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/sim_disk.hpp"

namespace cokv::sim {

class node {
 public:
  node(sim_context& context, std::string name);
  ~node();
  node(const node&) = delete;
  node& operator=(const node&) = delete;

  // Of the current life; those of earlier ones drop what is posted to them.
  sim_context::executor_type get_executor() const;
  const std::string& name() const noexcept { return name_; }
  sim::disk& disk() noexcept { return *disk_; }
  bool up() const noexcept { return life_ != nullptr; }

  // Not from a handler of the node itself: kill it from another host. Objects of the node that are still held
  // elsewhere may be destroyed afterwards, not used.
  void kill();
  void start();  // when it is down

 private:
  class life;
  void stop();

  sim_context& context_;
  std::string name_;
  std::shared_ptr<sim::disk> disk_;
  std::shared_ptr<life> life_;
};

}  // namespace cokv::sim

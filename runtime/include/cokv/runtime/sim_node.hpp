// A host of a simulated cluster: a name on the network, a disk, and an executor whose handlers can be dropped together,
// as if its process had been killed, or held back, as if it stood still.
//
//     cokv::sim::node server(context, "cache", [](auto ex) { asio::co_spawn(ex, serve(ex), asio::detached); });
//     server.pause();                                  // silence, for its peers
//     server.resume();
//     server.kill();                                   // its handlers, its sockets, what its disk had not synced
//     server.start();                                  // the same disk, nothing else; serve() once more
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/sim_disk.hpp"

namespace cokv::sim {

class node {
 public:
  // `boot` begins what the host runs, now and at each later start.
  using boot_function = std::function<void(sim_context::executor_type)>;
  node(sim_context& context, std::string name, boot_function boot = {});
  ~node();
  node(const node&) = delete;
  node& operator=(const node&) = delete;

  // The one of that name, or null.
  static node* find(sim_context& context, const std::string& name);

  // Of the current life; those of earlier ones drop what is posted to them.
  sim_context::executor_type get_executor() const;
  const std::string& name() const noexcept { return name_; }
  sim::disk& disk() noexcept { return *disk_; }
  bool up() const noexcept { return life_ != nullptr; }
  bool paused() const noexcept;

  // Not from a handler of the node itself: kill it from another host. Objects of the node that are still held
  // elsewhere may be destroyed afterwards, not used.
  void kill();
  void start();  // when it is down
  void restart() {
    kill();
    start();
  }

  // Its handlers, timers, disk and devices stand still while time goes on; what came due meanwhile runs at once when
  // it goes on. The network still takes what its peers send, as far as its sockets' buffers reach.
  void pause();
  void resume();

 private:
  class life;
  void stop();

  sim_context& context_;
  std::string name_;
  boot_function boot_;
  std::shared_ptr<sim::disk> disk_;
  std::shared_ptr<life> life_;
};

}  // namespace cokv::sim

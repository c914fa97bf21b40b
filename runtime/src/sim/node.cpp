#include "cokv/runtime/sim_node.hpp"

#include "services.hpp"

namespace cokv::sim {

class node::life : public asio::execution_context {
 public:
  life(sim_context& core, const std::string& name, std::shared_ptr<sim::disk> disk)
      : domain{core, *this, name, std::move(disk)} {
    detail::add_sim_services(domain);
  }
  ~life() {
    end();
    destroy();
  }

  // Every operation that waits is abandoned with its handler, and every handler that is queued is dropped. What goes
  // with them may queue more: those are dropped as they come.
  void end() {
    domain.dead = true;
    shutdown();
    domain.core.drop(domain);
  }

  detail::sim_domain domain;
};

node::node(sim_context& context, std::string name)
    : context_(context), name_(std::move(name)), disk_(std::make_shared<sim::disk>()) {
  start();
}

node::~node() { stop(); }

sim_context::executor_type node::get_executor() const { return sim_context::executor_type(life_->domain); }

void node::start() {
  if (life_) return;
  life_ = std::make_shared<life>(context_, name_, disk_);
  context_.keep(life_);  // executors of this life may outlive it
}

void node::stop() {
  if (auto ending = std::exchange(life_, nullptr)) ending->end();
}

void node::kill() {
  if (!life_) return;
  stop();
  disk_->crash(context_);
}

}  // namespace cokv::sim

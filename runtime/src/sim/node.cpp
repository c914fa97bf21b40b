#include "cokv/runtime/sim_node.hpp"

#include <map>

#include "cokv/runtime/trace.hpp"
#include "services.hpp"

namespace cokv::sim {
namespace {

class nodes_service final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  explicit nodes_service(asio::execution_context& c) : service(c) {}
  std::map<std::string, node*> by_name;

 private:
  void shutdown() override {}
};

std::map<std::string, node*>& nodes_of(sim_context& context) {
  return asio::use_service<nodes_service>(context).by_name;
}

}  // namespace

class node::life : public asio::execution_context {
 public:
  life(sim_context& core, const std::string& name, std::shared_ptr<sim::disk> disk)
      : domain{core, *this, name, std::move(disk)} {
    detail::add_sim_services(domain);
    if (auto& all = trace::of(core.get_executor()); all.enabled()) trace::of(executor()).enable(all.capacity());
  }
  ~life() {
    end();
    destroy();
  }

  // Every operation that waits is abandoned with its handler, and every handler that is queued is dropped. What goes
  // with them may queue more: those are dropped as they come.
  void end() {
    hand_over_spans();
    domain.dead = true;
    shutdown();
    domain.core.drop(domain);
  }

  void pause() {
    if (!domain.paused) paused_ = domain.core.now();
    domain.core.pause(domain);
  }
  void resume() {
    if (domain.paused) note("paused", paused_);
    domain.core.resume(domain);
  }

  sim_context::executor_type executor() { return sim_context::executor_type(domain); }

  detail::sim_domain domain;

 private:
  void note(const char* what, time_point since) {
    auto& all = trace::of(domain.core.get_executor());
    if (all.enabled()) all.add({"node " + domain.host, what, since, domain.core.now(), {}});
  }

  // A trace of the simulation shows all its hosts.
  void hand_over_spans() {
    if (domain.dead) return;
    if (domain.paused) note("paused", paused_);
    note("up", started_);
    auto& all = trace::of(domain.core.get_executor());
    auto& own = trace::of(executor());
    if (!all.enabled() || !own.enabled()) return;
    for (auto& s : own.spans()) {
      s.track = domain.host + ": " + s.track;
      all.add(std::move(s));
    }
  }

  const time_point started_ = domain.core.now();
  time_point paused_{};
};

node::node(sim_context& context, std::string name, boot_function boot)
    : context_(context), name_(std::move(name)), boot_(std::move(boot)), disk_(std::make_shared<sim::disk>()) {
  nodes_of(context_)[name_] = this;
  start();
}

node::~node() {
  stop();
  if (auto& all = nodes_of(context_); all[name_] == this) all.erase(name_);
}

node* node::find(sim_context& context, const std::string& name) {
  auto& all = nodes_of(context);
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

sim_context::executor_type node::get_executor() const { return sim_context::executor_type(life_->domain); }

void node::start() {
  if (life_) return;
  life_ = std::make_shared<life>(context_, name_, disk_);
  context_.keep(life_);  // executors of this life may outlive it
  if (boot_) boot_(get_executor());
}

bool node::paused() const noexcept { return life_ && life_->domain.paused; }

void node::pause() {
  if (life_) life_->pause();
}

void node::resume() {
  if (life_) life_->resume();
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

#include "cokv/runtime/clock.hpp"

#include "services.hpp"

namespace cokv::detail {
namespace {

// Every run begins at the same moment of the calendar.
constexpr wall_time epoch{std::chrono::sys_days{std::chrono::year{2025} / 1 / 1}};

class sim_clock final : public clock_impl {
 public:
  explicit sim_clock(sim_domain& domain) : domain_(domain) {}

  time_point now() const noexcept override { return domain_.core.now(); }
  wall_time wall_now() const noexcept override { return epoch + now().time_since_epoch(); }

  void add(deadline_operation& op) noexcept override {
    if (op.state().when == time_point::max()) return;  // never
    auto id = domain_.core.at(op.state().when, domain_, [&op] {
      op.state().owner = nullptr;
      op.complete({});
    });
    op.state().task = id.task;
    op.state().ticket = id.ticket;
  }

  void remove(deadline_state& state) noexcept override { domain_.core.cancel({state.task, state.ticket}); }

  void shutdown() override {}

 private:
  sim_domain& domain_;
};

}  // namespace

void add_sim_clock(sim_domain& domain) {
  asio::add_service(domain.context,
                    new clock(domain.context, sim_context::executor_type(domain), std::make_unique<sim_clock>(domain)));
}

}  // namespace cokv::detail

#include "simulate/replica.hpp"

#include <stdexcept>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::simulate {

std::string replica::host(std::uint32_t stage) const {
  return options_.name + std::to_string(number_) + "-stage" + std::to_string(stage);
}

replica::replica(sim_context& context, std::uint32_t number, replica_options o)
    : context_(context),
      number_(number),
      options_(std::move(o)),
      workers_(options_.split.depth()),
      joined_(context.get_executor(), 2) {
  const auto depth = options_.split.depth();
  const asio::any_io_executor home = context_.get_executor();
  add_stages();
  const auto share = [this](std::uint32_t s, const asio::any_io_executor& ex) {
    if (options_.cores) stages_[s]->share(options_.cores(machine(s)), ex);
  };
  const auto lead_on = [this, share](asio::any_io_executor ex) {
    share(0, ex);
    engine_ = std::make_unique<cokv::engine>(ex, open(ex, 0), stages_[0], std::nullopt, options_.engine);
  };
  if (depth == 1 && role() == cluster::worker_role::both) {
    lead_on(home);
    return;
  }
  for (std::uint32_t s = 0; s < depth; ++s) hosts_.push_back(std::make_unique<sim::node>(context_, host(s)));
  lead_on(hosts_[0]->get_executor());
  if (depth > 1) asio::co_spawn(hosts_[0]->get_executor(), lead(), asio::detached);
  for (std::uint32_t s = 1; s < depth; ++s) {
    const asio::any_io_executor ex = hosts_[s]->get_executor();
    share(s, ex);
    asio::co_spawn(ex, follow(ex, s), asio::detached);
  }
  open_for_kv();
}

void replica::add_stages() {
  const auto depth = options_.split.depth();
  const topology stages(depth, 1, 0, options_.split.starts());
  const asio::any_io_executor home = context_.get_executor();
  for (std::uint32_t s = 0; s < depth; ++s) {
    stages_.push_back(std::make_shared<priced_stage>(
        clock::of(home), options_.what,
        stage_shape{.split = stages,
                    .stage = s,
                    .row_bytes = options_.row_bytes,
                    .max_positions = options_.max_sequence,
                    .layers = options_.by_layers ? static_cast<std::uint32_t>(layers(s).count) : 1,
                    .of_layers = std::max(1u, options_.kv.layers)},
        activity_));
    if (auto& spans = trace::of(home); spans.enabled()) stages_.back()->show(spans, host(s));
  }
}

void replica::open_for_kv() {
  for (std::uint32_t s = 0; s < hosts_.size() && role() != cluster::worker_role::both; ++s) {
    const asio::any_io_executor ex = hosts_[s]->get_executor();
    if (role() == cluster::worker_role::prefill) {
      outlets_.push_back(std::make_shared<kv_outlet>(context_, ex, host(s), machine(s), options_.kv));
      outlets_.back()->open();
    } else {
      inlets_.push_back(std::make_shared<kv_inlet>(ex, host(s), machine(s)));
      inlets_.back()->open();
    }
  }
}

void replica::watch(std::uint32_t stage, std::uint64_t number, std::weak_ptr<prompt_sink> sink) {
  if (auto* w = workers_.at(stage)) w->watch(number, std::move(sink));
}

// Stages die with their hosts, the first one's engine before its own.
replica::~replica() {
  if (engine_) engine_->cancel_all();
  for (auto& s : stages_) s->leave();
  for (std::size_t s = 1; s < hosts_.size(); ++s) hosts_[s]->kill();
  engine_.reset();
  if (!hosts_.empty()) hosts_[0]->kill();
}

device replica::open(asio::any_io_executor ex, std::uint32_t stage) {
  // Of one host or many, each stage has its own.
  return open_device(ex, "sim:stage:" + std::to_string(options_.first_device + place(stage))).value();
}

std::shared_ptr<cluster::rank_links> replica::links_of(asio::any_io_executor ex, std::uint32_t stage) {
  std::vector<std::string> urls;
  const auto depth = options_.split.depth();
  for (std::uint32_t s = 0; s < depth; ++s) urls.push_back("tcp://" + host(s) + ":7600");
  auto made = std::make_shared<cluster::rank_links>(
      window_table(ex), cluster::rank_options{.split = topology(depth), .self = stage, .urls = urls});
  if (auto ec = made->listen("tcp://0.0.0.0:7600")) throw boost::system::system_error(ec);
  return made;
}

awaitable<void> replica::lead() {
  const auto links = links_of(co_await asio::this_coro::executor, 0);
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    group.spawn(links->run());
    const auto found = co_await links->gather(engine_->sizes(), engine_->running().fingerprint());
    if (!found) co_return found.error();
    if (auto ec = engine_->join(found->links)) co_return ec;
    (void)joined_.try_send(char());
    co_return error_code();
  });
  apart_ = v.error() ? v.error() : make_error_code(errc::closed);
  (void)joined_.try_send(char());
}

awaitable<void> replica::follow(asio::any_io_executor ex, std::uint32_t stage) {
  const auto links = links_of(ex, stage);
  const auto part = stages_[stage];
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(links->run());
    for (;;) {
      auto call = co_await links->summoned(part->fingerprint());
      if (!call) throw boost::system::system_error(call.error());
      stage_worker mine(ex, open(ex, stage), part, call->sizes);
      workers_[stage] = &mine;
      (void)co_await mine.run(std::move(call->links));
      workers_[stage] = nullptr;
    }
  });
}

awaitable<void> replica::joined() {
  if (hosts_.size() < 2) co_return;
  const auto ended = co_await with_deadline(joined_.async_receive(asio::deferred), std::chrono::minutes(1));
  if (const auto why = ended ? apart_ : ended.error())
    throw std::runtime_error("simulate: the stages of replica " + std::to_string(number_) +
                             " did not come together: " + why.message());
}

}  // namespace cokv::simulate

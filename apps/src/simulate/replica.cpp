#include "simulate/replica.hpp"

#include <stdexcept>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "simulate/turns.hpp"

namespace cokv::simulate {
namespace {

// Bytes that a host may keep of another's KV: what a stage has is no more.
constexpr std::uint64_t most_copies = std::uint64_t{1} << 40;

}  // namespace

std::string copied_stage(std::uint32_t stage, bool inside) {
  return "stage" + std::to_string(stage) + (inside ? "-inside" : "-network");
}

std::string replica::host(std::uint32_t stage) const {
  return options_.name + std::to_string(number_) + "-stage" + std::to_string(stage);
}

replica_counts& replica_counts::operator+=(const replica_counts& c) {
  preemptions += c.preemptions;
  recomputed_tokens += c.recomputed_tokens;
  restarted += c.restarted;
  resumed += c.resumed;
  blocks_in_use += c.blocks_in_use;
  swapped_in += c.swapped_in;
  swapped_out += c.swapped_out;
  return *this;
}

replica_counts& replica_counts::operator+=(const engine_counters& c) {
  return *this += replica_counts{c.preemptions,   c.recomputed_tokens, c.restarted_requests, c.resumed_requests,
                                 c.blocks_in_use, c.swapped_in_bytes,  c.swapped_out_bytes};
}

replica::replica(sim_context& context, std::uint32_t number, replica_options o)
    : context_(context),
      number_(number),
      options_(std::move(o)),
      lost_(options_.split.depth()),
      workers_(options_.split.depth()),
      outlets_(options_.split.depth()),
      inlets_(options_.split.depth()),
      joined_(context.get_executor(), 2) {
  const auto depth = options_.split.depth();
  add_stages();
  if (depth == 1 && role() == cluster::worker_role::both && !options_.mortal) {
    begin_on(context_.get_executor(), 0);
    return;
  }
  for (std::uint32_t s = 0; s < depth; ++s) hosts_.push_back(std::make_unique<sim::node>(context_, host(s)));
  for (std::uint32_t s = 0; s < depth; ++s) begin_on(hosts_[s]->get_executor(), s);
}

void replica::begin_on(asio::any_io_executor ex, std::uint32_t s) {
  if (options_.cores) stages_[s]->share(options_.cores(machine(s)), ex);
  open_for_kv(ex, s);
  if (s > 0) return asio::co_spawn(ex, follow(ex, s), asio::detached);
  leading_ = std::make_unique<leading>(ex);
  ++lives_;
  auto how = options_.engine;
  how.on_ranks_lost = [mine = leading_.get()](error_code) { mine->lost.tell(); };
  if (options_.copies) how.copies = {leading_->windows, most_copies, lives_};
  engine_ = std::make_unique<cokv::engine>(ex, open(ex, 0), stages_[0], std::nullopt, std::move(how));
  if (options_.split.depth() > 1)
    asio::co_spawn(ex, lead(), asio::detached);
  else
    joins_.push_back(clock::of(ex).now());
}

// Nothing of it moves from here on, and nobody has heard of that.
void replica::lose(std::uint32_t stage) {
  lost_[stage] = true;
  hosts_.at(stage)->pause();
  stages_[stage]->stop();
  if (inlets_[stage]) inlets_[stage]->stop();
}

// Who waits for an answer hears of its end by way of the host that it would have come from, before that is gone.
awaitable<void> replica::end(std::uint32_t stage) {
  if (stage == 0) {
    before_ += engine_->counters();
    engine_.reset();
    hosts_[0]->resume();
    co_await clock::of(context_.get_executor()).async_wait_for(duration(1), asio::deferred);
  }
  workers_[stage] = nullptr;
  stages_[stage]->leave();
  hosts_[stage]->kill();
  for (auto& weak : std::exchange(listeners_, {}))
    if (const auto tell = weak.lock()) (*tell)();
}

void replica::begin(std::uint32_t stage) {
  lost_[stage] = false;
  hosts_[stage]->start();
  begin_on(hosts_[stage]->get_executor(), stage);
}

replica_counts replica::counts() const {
  auto out = before_;
  out.blocks_in_use = 0;
  if (engine_) out += engine_->counters();
  return out;
}

std::uint64_t replica::copied_tokens(std::uint32_t stage) const {
  return options_.copies ? sim::device::of(context_, device_name(stage), host(stage)).counts.bytes : 0;
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
                    .of_layers = std::max(1u, options_.kv.layers),
                    .waits = !options_.swap_tokens_per_second.empty()},
        activity_));
    if (auto& spans = trace::of(home); spans.enabled()) stages_.back()->show(spans, host(s));
  }
}

void replica::open_for_kv(const asio::any_io_executor& ex, std::uint32_t s) {
  if (role() == cluster::worker_role::both) return;
  if (role() == cluster::worker_role::prefill) {
    outlets_[s] = std::make_shared<kv_outlet>(context_, ex, host(s), machine(s), options_.kv);
    outlets_[s]->open();
  } else {
    inlets_[s] = std::make_shared<kv_inlet>(context_, ex, host(s), machine(s));
    inlets_[s]->open();
  }
}

void replica::watch(std::uint32_t stage, std::uint64_t number, std::weak_ptr<prompt_sink> sink) {
  if (auto* w = workers_.at(stage)) w->watch(number, std::move(sink));
}

void replica::tell_of_loss(std::weak_ptr<std::function<void()>> whom) {
  if (!options_.mortal) return;
  listeners_.push_back(std::move(whom));
  if (listeners_.size() < look_at_) return;
  std::erase_if(listeners_, [](auto& l) { return l.expired(); });
  look_at_ = 64 + 2 * listeners_.size();
}

// Stages die with their hosts, the first one's engine before its own.
replica::~replica() {
  if (engine_) engine_->cancel_all();
  for (auto& s : stages_) s->leave();
  for (std::size_t s = 1; s < hosts_.size(); ++s) hosts_[s]->kill();
  engine_.reset();
  if (!hosts_.empty()) hosts_[0]->kill();
}

// Of one host or many, each stage has its own.
std::string replica::device_name(std::uint32_t stage) const {
  const auto what = options_.copies ? copied_stage(stage, machine(stage) == machine(keeper(stage)))
                    : options_.swap_tokens_per_second.empty() ? "stage"
                                                              : swapped_stage(stage);
  return "sim:" + what + ':' + std::to_string(options_.first_device + place(stage));
}

device replica::open(asio::any_io_executor ex, std::uint32_t stage) {
  return open_device(std::move(ex), device_name(stage)).value();
}

std::shared_ptr<cluster::rank_links> replica::links_of(const window_table& windows, std::uint32_t stage) {
  std::vector<std::string> urls;
  const auto depth = options_.split.depth();
  for (std::uint32_t s = 0; s < depth; ++s) urls.push_back("tcp://" + host(s) + ":7600");
  cluster::rank_options how{.split = topology(depth), .self = stage, .urls = urls};
  how.greeting.silence = options_.silence;
  auto made = std::make_shared<cluster::rank_links>(windows, std::move(how));
  if (auto ec = made->listen("tcp://0.0.0.0:7600")) throw boost::system::system_error(ec);
  return made;
}

// Once, and again behind each loss. The engine may end on the way, a moment before its host does.
awaitable<error_code> replica::come_together(cluster::rank_links& links) {
  if (!engine_) co_return errc::closed;
  auto& time = clock::of(engine_->get_executor());
  cluster::rank_links::planner recover;
  if (options_.copies)
    recover = [this](std::vector<stage_holding> said) {
      return engine_ ? engine_->recover(std::move(said)) : stage_recovery();
    };
  auto met = co_await links.gather(engine_->sizes(), engine_->running().names(), recover);
  if (!met) co_return met.error();
  error_code ec;
  while ((ec = engine_ ? engine_->join(met->links, met->how) : errc::closed) == errc::in_use)
    co_await time.async_wait_for(std::chrono::milliseconds(1), asio::deferred);
  if (!ec) joins_.push_back(time.now());
  co_return ec;
}

awaitable<void> replica::lead() {
  const auto links = links_of(leading_->windows, 0);
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<error_code> {
    group.spawn(links->run());
    for (;;) {
      if (auto ec = co_await come_together(*links)) co_return ec;
      (void)joined_.try_send(char());
      co_await leading_->lost.async_wait(asio::deferred);
    }
  });
  apart_ = v.error() ? v.error() : make_error_code(errc::closed);
  (void)joined_.try_send(char());
}

awaitable<void> replica::follow(asio::any_io_executor ex, std::uint32_t stage) {
  const window_table windows(ex);
  const auto links = links_of(windows, stage);
  const auto part = stages_[stage];
  std::unique_ptr<stage_worker> mine;
  const auto has = [&mine](const stage_sizes& sizes) {
    return mine && mine->sizes() == sizes ? mine->holding() : stage_holding();
  };
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(links->run());
    for (;;) {
      auto call = co_await links->summoned(part->own_stage(), has);
      if (!call) throw boost::system::system_error(call.error());
      if (!mine || mine->sizes() != call->sizes)
        mine = std::make_unique<stage_worker>(ex, open(ex, stage), part, call->sizes, memory_kind::device, windows);
      workers_[stage] = mine.get();
      (void)co_await mine->run(std::move(call->links), std::move(call->how));
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

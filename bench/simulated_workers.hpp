// A router, prefill and decode workers on hosts of a simulated cluster, each with a simulated device, and engines alone on
// such devices: in virtual time, with the code of `cokv serve` between a request and its tokens. Processor time of hosts is
// not modelled.
//
// KV is divided by `scale` (priced_model.hpp), and with it all that it moves through: the link between prefill and decode
// workers, PCIe, and the pieces that it is cut into. So whatever moves takes as long as the real bytes do over the real link.
// Routers' links carry requests and tokens, at the whole bandwidth.
#pragma once

#include <unistd.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cluster/landing_entrance.hpp"
#include "cluster/link_pool.hpp"
#include "cluster/members.hpp"
#include "cluster/prefill_service.hpp"
#include "cluster/remote_answers.hpp"
#include "cluster/wire_of.hpp"
#include "cluster/worker_info.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_device_spec.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "cokv/runtime/with.hpp"
#include "openai/engine_backend.hpp"
#include "priced_model.hpp"

namespace cokv::bench {

using namespace std::chrono_literals;

struct simulated {
  model_config shape;
  std::uint32_t scale = 64;
  std::uint32_t devices = 1;             // of a worker, that are as one: what they tell each other takes no time
  double arithmetic = 1, bandwidth = 1;  // of the device's sheet, what kernels reach
  std::string device = "h100";           // a published one
  double nic_bytes_per_second = 12.5e9;  // each way
  duration latency = 10us;               // one way
  std::uint32_t prompt_tokens = 2048, chunk_tokens = 16384;  // of a step: of prefill workers, of engines alone
  std::uint32_t most_tokens = 0;                             // that an engine holds KV of; 0: as many as find room
  memory_kind kv = memory_kind::device;  // where links reach it through pinned chunks; or pinned itself
  bool free = false;                     // kernels cost nothing

  std::uint64_t link_chunk() const { return std::max<std::uint64_t>((1 << 20) / scale, 4096); }
};

// That device with PCIe divided by the scale, as a file that open_device() reads.
class scaled_device {
 public:
  explicit scaled_device(const simulated& s)
      : path_(std::filesystem::temp_directory_path() / ("cokv_bench." + std::to_string(::getpid()) + ".json")) {
    spec_ = sim::published_device(s.device).value();
    spec_.flops_per_second *= s.arithmetic * s.devices;
    spec_.memory_bytes_per_second *= s.bandwidth * s.devices;
    spec_.memory_bytes *= s.devices;
    spec_.pcie_bytes_per_second *= s.devices;
    std::ofstream(path_) << boost::json::object{{"memory_bytes", spec_.memory_bytes},
                                                {"memory_bytes_per_second", spec_.memory_bytes_per_second},
                                                {"pcie_bytes_per_second", spec_.pcie_bytes_per_second / s.scale},
                                                {"flops_per_second", spec_.flops_per_second},
                                                {"launch_seconds", spec_.launch_seconds}};
  }
  ~scaled_device() { std::filesystem::remove(path_); }
  scaled_device(const scaled_device&) = delete;
  std::string name() const { return "sim:" + path_.string(); }
  const sim::device_spec& spec() const noexcept { return spec_; }

 private:
  std::filesystem::path path_;
  sim::device_spec spec_;
};

// An engine with the memory of its device that the weights, and a tenth, leave.
class device_engine {
 public:
  device_engine(asio::any_io_executor ex, const simulated& s, const scaled_device& d, const std::string& number,
                std::uint32_t step_tokens, std::function<time_point()> now)
      : what(std::make_shared<priced_model>(s.shape, s.scale, s.free, std::move(now))),
        where(open_device(ex, d.name() + number).value()),
        run(ex, where, what, std::nullopt, options(s, d, step_tokens)) {}

  std::shared_ptr<priced_model> what;
  device where;
  engine run;

 private:
  engine_options options(const simulated& s, const scaled_device& d, std::uint32_t step_tokens) const {
    const double room = 0.9 * d.spec().memory_bytes - what->weight_bytes();
    engine_options o{.block_tokens = 16, .max_batched_tokens = step_tokens, .prefix_cache = false};
    o.kv_blocks = static_cast<std::uint32_t>(room / static_cast<double>(16 * what->token_bytes()));
    o.kv_memory = s.kv;
    if (s.most_tokens > 0) o.kv_blocks = std::min(o.kv_blocks, s.most_tokens / o.block_tokens);
    o.max_sequence = std::min<std::uint32_t>(s.shape.max_positions, 16384);
    return o;
  }
};

inline cluster::worker_facts facts_of(const engine& e, cluster::worker_role role, const std::string& life) {
  return cluster::facts_of(e, role, cluster::offer_of(e, "worker", life));
}

class worker_host {
 public:
  static constexpr const char* names[] = {"", "prefill", "decode"};

  worker_host(asio::any_io_executor ex, const simulated& s, const scaled_device& d, cluster::worker_role role,
              std::function<time_point()> now)
      : gpu(ex, s, d, "", s.prompt_tokens, std::move(now)), windows(ex), server(ex) {
    const std::string name = names[static_cast<int>(role)];
    link_options links;
    links.name = "kv/" + name + '/' + name + "-life";
    links.ns = cluster::links_of(gpu.run.running().fingerprint());
    links.chunk = s.link_chunk();
    if (windows.stage(gpu.where, {.chunk = s.link_chunk()})) throw config_error("no pinned memory for links");
    if (role == cluster::worker_role::prefill) {
      pool.emplace(windows, links);
      prefill.emplace(gpu.run, *pool);
      prefill->route(server);
    } else {
      door.emplace(windows, links);
      if (door->listen("tcp://0.0.0.0:7000")) throw config_error("the door can't listen");
      entrance.emplace(gpu.run, *door, windows,
                       cluster::entrance_options{.life = name + "-life", .links = [] {
                                                   return std::vector<std::string>{"tcp://decode:7000"};
                                                 }});
      decode.emplace(ex, *entrance, cluster::decode_options{.max_sequence = gpu.run.max_sequence()});
      decode->route(server);
    }
    server.route(http::verb::get, "/v1/worker", [this, role, name](http::exchange& x) -> awaitable<void> {
      auto f = facts_of(gpu.run, role, name + "-life");
      if (role == cluster::worker_role::decode) f.links = {"tcp://decode:7000"};
      co_await x.respond(http::status::ok, "application/json", boost::json::serialize(to_json(f)));
    });
    server.listen({"0.0.0.0", 8000});
  }

  static awaitable<void> serve(std::shared_ptr<worker_host> h) {
    (void)co_await with(task_group{}, [h](task_group& group) -> awaitable<void> {
      if (h->door) group.spawn(h->door->run());
      if (h->decode) group.spawn(h->decode->run());
      co_await h->server.run();
      if (h->decode) h->decode->close();
      if (h->door) h->door->close();
      if (h->pool) h->pool->close();
    });
  }

  device_engine gpu;
  window_table windows;
  std::optional<cluster::link_pool> pool;
  std::optional<cluster::prefill_service> prefill;
  std::optional<cluster::link_door> door;
  std::optional<cluster::landing_entrance> entrance;
  std::optional<cluster::decode_service> decode;
  http::server server;
};

using submit_function = std::function<result<std::unique_ptr<openai::answer>>(generation_request)>;

// What a run measures by: how requests are submitted, and what it is that answers them.
struct system_under_load {
  submit_function submit;
  worker_host* prefill = nullptr;  // or none: the engines are alone
  worker_host* decode = nullptr;
  sim::net* net = nullptr;
  std::uint64_t moved_bytes = 0;  // of KV, of the real model; when it has ended
};

using load_body = std::function<awaitable<void>(system_under_load&)>;

// The body's errors end the program: a bench that measured something else measured nothing.
inline void to_the_end(sim_context& context, const char* what, const bool& ended) {
  const auto outcome = context.run();
  if (ended && outcome == sim_context::outcome::done) return;
  std::fprintf(stderr, "%s did not come to its end\n", what);
  std::exit(2);
}

inline void rethrow(std::exception_ptr e) {
  if (e) std::rethrow_exception(e);
}

// One prefill and one decode worker behind a router, which is the host that asks.
inline std::uint64_t run_disaggregated(std::uint64_t seed, const simulated& s, const load_body& body) {
  sim_context context(seed);
  auto& net = sim::net::of(context);
  const auto link = [&](double bytes) {
    return sim::net_link{.latency_min = s.latency, .latency_max = s.latency, .bytes_per_second = bytes};
  };
  net.faults.short_transfer = 0;
  net.faults.socket_buffer = std::max<std::size_t>((4 << 20) / s.scale, 64 << 10);
  net.set_link("prefill", "decode", link(s.nic_bytes_per_second / s.scale));
  net.set_link("router", "prefill", link(s.nic_bytes_per_second));
  net.set_link("router", "decode", link(s.nic_bytes_per_second));
  const scaled_device device(s);
  system_under_load system{.net = &net};
  bool ended = false;
  {
    std::shared_ptr<worker_host> hosts[3];
    const auto boot = [&](cluster::worker_role role) {
      return [&, role](sim_context::executor_type ex) {
        auto& h = hosts[static_cast<int>(role)];
        h = std::make_shared<worker_host>(ex, s, device, role, [&context] { return context.now(); });
        asio::co_spawn(ex, worker_host::serve(h), rethrow);
      };
    };
    sim::node prefill(context, "prefill", boot(cluster::worker_role::prefill));
    sim::node decode(context, "decode", boot(cluster::worker_role::decode));
    sim::node router(context, "router");
    system.prefill = hosts[1].get(), system.decode = hosts[2].get();
    auto main = [&]() -> awaitable<void> {
      const auto ex = co_await asio::this_coro::executor;
      cluster::members workers(ex, {}, {});
      for (const char* host : {"prefill", "decode"})
        if (workers.add("http://" + std::string(host) + ":8000")) throw config_error("no such worker");
      cluster::remote_answers answers(ex, workers, {.prefix = "r"});
      system.submit = [&answers](generation_request r) { return answers.submit(std::move(r)); };
      const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn(workers.run());
        group.spawn(answers.run());
        co_await clock::of(ex).async_wait_for(10ms, asio::deferred);
        co_await body(system);
        system.moved_bytes = hosts[1]->prefill->sent_bytes() * s.scale;
        answers.close();
        workers.close();
      });
      if (!v) throw boost::system::system_error(v.error());
      for (int role : {1, 2}) hosts[role]->server.drain(1s);
      ended = true;
    };
    asio::co_spawn(router.get_executor(), main(), rethrow);
    to_the_end(context, "the cluster", ended);
  }
  return system.moved_bytes;
}

// So many engines alone, each with a device of its own. Where there are several, a request goes to the one that has the
// smallest part of its KV in use, by the router's own placement, which here knows of every change at once: what is between
// router and workers costs the disaggregated ones alone.
inline void run_colocated(std::uint64_t seed, const simulated& s, int engines, const load_body& body) {
  sim_context context(seed);
  const asio::any_io_executor ex = context.get_executor();
  const scaled_device device(s);
  bool ended = false;
  {
    std::vector<std::unique_ptr<device_engine>> all;
    cluster::worker_table table;
    std::vector<cluster::worker_table::id> ids;
    for (int i = 0; i < engines; ++i) {
      all.push_back(std::make_unique<device_engine>(ex, s, device, ":" + std::to_string(i), s.chunk_tokens,
                                                    [&context] { return context.now(); }));
      ids.push_back(table.add("engine-" + std::to_string(i)));
    }
    // Counts as load until it has ended.
    struct placed final : openai::answer {
      placed(std::unique_ptr<openai::answer> a, cluster::worker_table& t, cluster::worker_table::id at, std::uint64_t n)
          : inner(std::move(a)), table(t), id(at), tokens(n) {
        table.give(id, tokens);
      }
      ~placed() override { table.ended(id, tokens); }
      awaitable<result<generated>> next() override { return inner->next(); }
      const generation_report& report() const override { return inner->report(); }
      std::unique_ptr<openai::answer> inner;
      cluster::worker_table& table;
      cluster::worker_table::id id;
      std::uint64_t tokens;
    };
    system_under_load system;
    system.submit = [&](generation_request r) -> result<std::unique_ptr<openai::answer>> {
      for (std::size_t i = 0; i < all.size(); ++i)
        table.heard(ids[i], facts_of(all[i]->run, cluster::worker_role::both, std::to_string(i)), context.now());
      const auto length = static_cast<std::uint32_t>(r.prompt.size()) + r.max_tokens;
      const auto at = cluster::place(table, cluster::prefix_index(),
                                     {.prompt = static_cast<std::uint32_t>(r.prompt.size()), .length = length}, {}, {});
      if (!at) return errc::unavailable;
      auto g = all[static_cast<std::size_t>(std::ranges::find(ids, *at) - ids.begin())]->run.submit(std::move(r));
      if (!g) return g.error();
      return std::make_unique<placed>(openai::answer_of(std::move(*g)), table, *at, length);
    };
    auto main = [&]() -> awaitable<void> {
      co_await body(system);
      ended = true;
    };
    asio::co_spawn(ex, main(), rethrow);
    to_the_end(context, "the engine", ended);
  }
}

}  // namespace cokv::bench

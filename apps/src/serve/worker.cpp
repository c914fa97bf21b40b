#include "serve/worker.hpp"

#include <boost/json/serialize.hpp>
#include <filesystem>
#include <random>
#include <sstream>

#include "cluster/wire_of.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::serve {
namespace {

std::string some_life() {
  std::random_device source;
  std::ostringstream out;
  out << std::hex;
  for (int i = 0; i < 4; ++i) out << source();
  return out.str();
}

link_options greeting(const engine& e, const std::string& name, const std::string& life) {
  link_options out;
  out.name = "kv/" + name + '/' + life;
  out.ns = cluster::links_of(e);
  return out;
}

std::vector<std::string> doors_of(const options& o, const std::string& life) {
  if (!o.links.empty()) return o.links;
  const auto socket = std::filesystem::temp_directory_path() / ("cokv-" + life + ".kv");
  return {"shm://" + socket.string(), "tcp://" + endpoint{o.listen.host, 0}.to_string()};
}

}  // namespace

worker::worker(const asio::any_io_executor& ex, engine& e, device where, const options& o)
    : engine_(e),
      role_(o.role == "prefill" ? cluster::worker_role::prefill : cluster::worker_role::decode),
      name_(o.role),
      life_(some_life()),
      advertise_(o.advertise),
      windows_(ex),
      links_(greeting(e, name_, life_)),
      door_(windows_, links_),
      pool_(windows_, links_),
      entrance_(e, door_, windows_,
                {.life = life_, .lease = std::chrono::seconds(o.lease), .links = [this] { return links(); }}),
      decode_(ex, entrance_, {.max_sequence = e.max_sequence(), .max_sequences = o.max_requests}),
      prefill_(e, pool_) {
  if (!e.pool().memory().host_accessible())
    if (auto ec = windows_.stage(where))
      throw config_error("--device " + o.device + ": no pinned memory for links: " + ec.message());
  if (role_ == cluster::worker_role::prefill) return;
  for (auto& url : doors_of(o, life_)) {
    // An address that stands for all of a machine's is none that others can call.
    if (advertise_.empty() && (url.find("://0.0.0.0:") != url.npos || url.find("://[::]:") != url.npos))
      throw config_error("--advertise: has to say what others call this machine, since KV comes in at " + url);
    if (auto ec = door_.listen(url)) throw config_error("--link " + url + ": " + ec.message());
  }
}

std::vector<std::string> worker::links() const {
  auto out = door_.urls();
  for (auto& url : out) {
    const auto scheme = url.find("://"), port = url.rfind(':');
    if (advertise_.empty() || scheme == url.npos || url.starts_with("shm://")) continue;
    const bool six = advertise_.find(':') != advertise_.npos;
    url = url.substr(0, scheme + 3) + (six ? '[' + advertise_ + ']' : advertise_) + url.substr(port);
  }
  return out;
}

cluster::worker_facts worker::facts() const {
  const auto c = engine_.counters();
  return {.role = role_,
          .self = cluster::offer_of(engine_, name_, life_),
          .epoch = 0,
          .links = links(),
          .max_sequence = engine_.max_sequence(),
          .blocks = c.blocks,
          .blocks_free = c.blocks_free,
          .running = c.running,
          .waiting = c.waiting,
          .prompt_tokens_left = c.prompt_tokens_left};
}

void worker::route(http::server& s) {
  s.route(http::verb::get, "/v1/worker",
          [this](http::exchange& x) -> awaitable<void> {
            co_await x.respond(http::status::ok, "application/json", boost::json::serialize(to_json(facts())));
          },
          {.any_of = static_cast<std::uint8_t>(http::right::admin)});
  if (role_ == cluster::worker_role::prefill)
    prefill_.route(s);
  else
    decode_.route(s);
}

void worker::measure(http::scrape& s) const {
  if (role_ == cluster::worker_role::prefill) {
    s.counter("cokv_departed_prompts_total", "Prompts whose KV was sent to another worker",
              static_cast<double>(prefill_.prompts()));
    s.counter("cokv_departed_bytes_total", "KV that was sent to other workers",
              static_cast<double>(prefill_.sent_bytes()));
  } else {
    s.gauge("cokv_sequences", "Sequences that came from other workers, ended ones that may be asked for again too",
            static_cast<double>(decode_.sequences()));
    s.gauge("cokv_windows", "Rooms that other workers may write", static_cast<double>(windows_.size()));
  }
}

awaitable<void> worker::run() {
  (void)co_await with(task_group{}, [this](task_group& group) -> awaitable<void> {
    if (role_ != cluster::worker_role::prefill) group.spawn(door_.run());
    co_await decode_.run();  // ends with close()
    door_.close();
    pool_.close();
  });
}

void worker::close() { decode_.close(); }

}  // namespace cokv::serve

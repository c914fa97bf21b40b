// Where a prompt's KV leaves the stages that computed it, and where it comes in at those that decode with it: a connection
// between each two of them over the simulated network, made when it is first needed. KV is sent in the order in which it is
// computed, by one parcel at a time: a host has one network interface, in each direction.
//
//     auto in = std::make_shared<kv_inlet>(context, decode_host, "decode0-stage0", 1);
//     auto out = std::make_shared<kv_outlet>(context, prefill_host, "prefill0-stage0", 0, shape);
//     out->send({.computed = event, .to = in, .rows = 500, .wanted = [] { return true; }, .arrived = [] { ... }});
//
// Of a token and layer a few bytes are sent, over a link that is as many times slower as they are fewer than it has: it takes as
// long. What is on its way to a host that is lost, or from it, does not arrive. Digests, headers and what peers say of a prompt before it is on its way cost nothing here.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cluster/news.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/event.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/sim_net.hpp"

namespace cokv::simulate {

// How a prompt's KV is cut, and what it moves over.
struct kv_shape {
  static constexpr std::size_t sent_bytes = 16;  // of a row: a token and layer

  std::uint32_t layers = 1;       // of the model
  double row_bytes = 0;           // that there really are; 0: it takes no time by itself
  double step_seconds = 0;        // instead: what that of a step's prompts takes to leave a stage
  sim::net_link network, inside;  // between machines; between GPUs of one
};

class kv_inlet : public std::enable_shared_from_this<kv_inlet> {
 public:
  // `ex`: of the host. `machine`: which one it is in.
  kv_inlet(sim_context& context, asio::any_io_executor ex, std::string host, std::uint64_t machine);
  void open();                   // listens from here on, as long as its host is there
  void stop() { gone_ = true; }  // its host is lost: nothing more is sent there

  const std::string& host() const noexcept { return host_; }

 private:
  friend class kv_outlet;
  struct coming {
    std::size_t left = 0;  // bytes
    std::function<void()> arrived;
  };
  using line = std::deque<coming>;
  static awaitable<void> accept(std::shared_ptr<kv_inlet> self);
  static awaitable<void> read(byte_stream from, std::shared_ptr<line> expected);

  asio::any_io_executor ex_;
  std::string host_;
  std::uint64_t machine_;
  bool gone_ = false;
  semaphore turn_;                                      // outlives the host, as those who wait for it do
  std::map<std::string, std::shared_ptr<line>> lines_;  // by the sender's host
};

struct kv_parcel {
  event computed;
  std::shared_ptr<kv_inlet> to;
  const void* prompt = nullptr;  // whose
  std::size_t rows = 0;
  double seconds = 0;  // beside what rows take; of the first prompt of a step
  std::function<bool()> wanted;
  std::function<void()> arrived;  // on the receiver's host
};

class kv_outlet : public std::enable_shared_from_this<kv_outlet> {
 public:
  kv_outlet(sim_context& context, asio::any_io_executor ex, std::string host, std::uint64_t machine, kv_shape shape);
  void open();

  void send(kv_parcel p);
  // One way, without anything to send.
  duration latency(const kv_inlet& to) const { return link_to(to).latency_min; }

  const std::string& host() const noexcept { return host_; }
  // By the receiver's host; and how long anything was on its way out, in seconds.
  const std::map<std::string, double>& sent_bytes() const noexcept { return sent_; }
  double busy() const noexcept { return busy_; }

 private:
  struct line {
    byte_stream to;
    std::shared_ptr<kv_inlet::line> expected;
    std::weak_ptr<kv_inlet> end;
  };
  static awaitable<void> run(std::shared_ptr<kv_outlet> self);
  awaitable<void> deliver(kv_parcel p);
  double seconds_of(const kv_parcel& p);
  awaitable<line*> line_to(const std::shared_ptr<kv_inlet>& to);
  const sim::net_link& link_to(const kv_inlet& to) const;

  sim_context& context_;
  asio::any_io_executor ex_;
  clock& time_;
  std::string host_;
  std::uint64_t machine_;
  kv_shape shape_;
  std::deque<kv_parcel> waiting_;
  cluster::news changed_;
  event step_;  // of the last parcel, and whose time it took
  const void* payer_ = nullptr;
  std::map<std::string, line> lines_;
  std::map<std::string, double> sent_;
  double busy_ = 0;
};

}  // namespace cokv::simulate

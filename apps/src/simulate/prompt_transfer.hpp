// A prompt's KV on its way from the stages that compute it to those that will decode with it, layer by layer while it is
// computed.
//
//     auto moves = std::make_shared<prompt_transfer>(ex, prefill, decode, prompt.size());
//     auto g = prefill.engine().submit({.prompt = prompt, .max_tokens = 1, .sink = moves->begin()});
//     if (auto why = co_await moves->all_there()) ...
//
// Nothing of it is sent any more once it is destroyed. Belongs to one context.
#pragma once

#include <memory>
#include <vector>

#include "simulate/replica.hpp"

namespace cokv::simulate {

class prompt_transfer : public std::enable_shared_from_this<prompt_transfer> {
 public:
  // Both outlive it.
  prompt_transfer(asio::any_io_executor ex, replica& from, replica& to, std::uint32_t tokens);

  // For the request that computes it; stages behind the first are told of it beside.
  std::shared_ptr<prompt_sink> begin();
  // errc::unavailable: it had to give its blocks up where it was computed, or a host of either side was lost.
  awaitable<error_code> all_there();
  time_point there() const noexcept { return there_; }  // when it was

 private:
  class stage_sink;
  void computed(std::uint32_t stage, index_range layers, std::uint32_t tokens, const event& when);
  void arrived(std::uint64_t rows);

  asio::any_io_executor ex_;
  replica &from_, &to_;
  std::uint64_t left_;  // rows: of each layer its tokens
  std::uint64_t number_;
  bool lost_ = false;
  time_point there_{};
  std::vector<std::shared_ptr<stage_sink>> sinks_;  // by stage
  cluster::news changed_;
  std::shared_ptr<std::function<void()>> on_loss_;
};

}  // namespace cokv::simulate

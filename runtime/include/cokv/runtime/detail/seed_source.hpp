// Where a seed comes from that nobody chose: the system's randomness, and on a sim_context its own seed, so that what
// is drawn from it is part of the run.
//
//     std::uint64_t seed = detail::seed_source::of(ex).next();
#pragma once

#include <cstdint>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/unique_function.hpp"

namespace cokv::detail {

// One per context, used from the context's thread.
class seed_source final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  explicit seed_source(asio::execution_context& context) : service(context) {}
  seed_source(asio::execution_context& context, unique_function<std::uint64_t()> draw)
      : service(context), draw_(std::move(draw)) {}

  static seed_source& of(const asio::any_io_executor& ex) {
    return asio::use_service<seed_source>(asio::query(ex, asio::execution::context));
  }

  std::uint64_t next();

 private:
  void shutdown() override {}

  unique_function<std::uint64_t()> draw_;
};

}  // namespace cokv::detail

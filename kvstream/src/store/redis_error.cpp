#include "cokv/kvstream/redis_error.hpp"

namespace cokv {
namespace {

class redis_errors final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "redis"; }
  std::string message(int value) const override {
    switch (static_cast<redis_errc>(value)) {
      case redis_errc::out_of_memory:
        return "Redis is at its maxmemory, and may not evict";
      case redis_errc::read_only:
        return "the Redis node is a replica, and takes no writes";
      case redis_errc::loading:
        return "the Redis node is still loading its data";
      case redis_errc::cluster_down:
        return "the Redis Cluster does not serve this slot";
      case redis_errc::try_again:
        return "the slot's keys are on their way to another Redis node";
      case redis_errc::master_down:
        return "the Redis replica has lost its master";
      case redis_errc::busy:
        return "the Redis node is busy with a script";
      case redis_errc::not_writable:
        return "Redis takes no writes, as it can't save";
      case redis_errc::no_password:
        return "Redis wants a password";
      case redis_errc::wrong_password:
        return "Redis knows no such user and password";
      case redis_errc::no_permission:
        return "the Redis user may not do this";
      case redis_errc::refused:
        return "Redis refused the command";
    }
    return "unknown error of Redis";
  }
};

}  // namespace

const boost::system::error_category& redis_category() noexcept {
  static const redis_errors category;
  return category;
}

}  // namespace cokv

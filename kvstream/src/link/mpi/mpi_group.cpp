#include "cokv/kvstream/mpi_group.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/mpi/mpi_port.hpp"

namespace cokv {
namespace {

using detail::mpi_port;

// What MPI reads and writes, for as long as it does.
struct sum_under_way {
  std::vector<float> numbers;
  bool over = false;
  error_code why;
  detail::operation_list<detail::operation<void(error_code)>> waiting;
};

class group_of_ranks final : public mpi_group {
 public:
  group_of_ranks(mpi_port& port, MPI_Comm comm, int rank, int size)
      : port_(port), comm_(comm), rank_(rank), size_(size) {}

  std::uint32_t size() const noexcept override { return static_cast<std::uint32_t>(size_); }
  std::uint32_t rank() const noexcept override { return static_cast<std::uint32_t>(rank_); }
  bool useful() const noexcept override { return useful_; }

  awaitable<error_code> all_reduce(std::span<float> numbers) override {
    if (!useful_) co_return errc::closed;
    if (size_ == 1 || numbers.empty()) co_return error_code();
    if (numbers.size() > std::numeric_limits<int>::max()) co_return errc::too_large;
    const auto sum = std::make_shared<sum_under_way>();
    sum->numbers.assign(numbers.begin(), numbers.end());
    useful_ = false;
    port_.sum(sum->numbers, comm_, [sum](error_code ec) {
      sum->over = true;
      sum->why = ec;
      sum->waiting.complete_all(ec);
    });
    if (!sum->over) {
      const auto wait = [&](detail::operation<void(error_code)>& op) { sum->waiting.push_back(op); };
      (void)co_await detail::initiate<void(error_code)>(as_result, port_.executor(), wait);
    }
    if (!sum->over) co_return asio::error::operation_aborted;
    if (sum->why) co_return sum->why;
    std::ranges::copy(sum->numbers, numbers.begin());
    useful_ = true;
    co_return error_code();
  }

 private:
  mpi_port& port_;
  MPI_Comm comm_;  // as long as the process
  int rank_, size_;
  bool useful_ = true;
};

}  // namespace

result<std::shared_ptr<mpi_group>> mpi_group::split(const asio::any_io_executor& ex, std::uint32_t colour) {
  auto port = mpi_port::of(ex);
  if (!port) return port.error();
  int rank = 0, size = 0;
  auto comm = (*port)->split(static_cast<int>(colour & 0x7fffffff), rank, size);
  if (!comm) return comm.error();
  return std::shared_ptr<mpi_group>(std::make_shared<group_of_ranks>(**port, *comm, rank, size));
}

}  // namespace cokv

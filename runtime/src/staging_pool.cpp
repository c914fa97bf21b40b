#include "cokv/runtime/staging_pool.hpp"

#include <boost/assert.hpp>
#include <new>

#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/error.hpp"
#include "physical_memory.hpp"

namespace cokv {

namespace detail {

class staging_state : public std::enable_shared_from_this<staging_state> {
 public:
  staging_state(asio::any_io_executor ex, std::vector<buffer> buffers)
      : back(std::move(ex)), count(buffers.size()), bytes(buffers.front().size()), free(std::move(buffers)) {}

  std::optional<buffer> take() {
    if (free.empty() || !waiters.empty()) return std::nullopt;
    return lend();
  }

  void give_back(buffer b) {
    free.push_back(std::move(b));
    if (!waiters.empty()) waiters.front().complete({}, lend());
  }

  mailbox back;
  std::size_t count;
  std::size_t bytes;
  std::vector<buffer> free;
  operation_list<operation<void(error_code, buffer)>> waiters;

 private:
  // Owned by every handle to a buffer that is out. The last one may go on a device's thread.
  struct lease {
    std::shared_ptr<staging_state> to;
    buffer mine;
    ~lease() {
      auto& back = to->back;
      back.post([to = to, mine = std::move(mine)]() mutable { to->give_back(std::move(mine)); });
    }
  };

  buffer lend() {
    buffer b = std::move(free.back());
    free.pop_back();
    auto owner = std::make_shared<lease>(shared_from_this(), b);
    return buffer::adopt(b.data(), b.size(), b.kind(), std::move(owner), b.host_accessible());
  }
};

}  // namespace detail

staging_pool::staging_pool(asio::any_io_executor ex, std::vector<buffer> buffers) {
  BOOST_ASSERT(!buffers.empty());
  for (const auto& b : buffers) BOOST_ASSERT(b.size() == buffers.front().size());
  state_ = std::make_shared<detail::staging_state>(std::move(ex), std::move(buffers));
}

staging_pool& staging_pool::operator=(staging_pool&& o) noexcept {
  if (this != &o) {
    if (state_) state_->waiters.complete_all(asio::error::operation_aborted);
    state_ = std::move(o.state_);
  }
  return *this;
}

staging_pool::~staging_pool() {
  if (state_) state_->waiters.complete_all(asio::error::operation_aborted);
}

result<staging_pool> staging_pool::make(device& from, std::size_t bytes, std::size_t count, memory_kind kind) {
  if (bytes == 0 || count == 0) return errc::invalid_argument;
  // Before the first buffer is made: a system may promise them one by one and kill who uses them all.
  if (count > detail::physical_memory() / bytes) return errc::out_of_memory;
  try {
    std::vector<buffer> buffers;
    buffers.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      auto b = from.allocate(bytes, kind);
      if (!b) return b.error();
      buffers.push_back(std::move(*b));
    }
    return staging_pool(from.get_executor(), std::move(buffers));
  } catch (const std::bad_alloc&) {
    return errc::out_of_memory;
  }
}

asio::any_io_executor staging_pool::get_executor() const { return state_->back.get_executor(); }
const detail::prepared_executor& staging_pool::executor() const noexcept { return state_->back.executor(); }
std::size_t staging_pool::buffer_bytes() const noexcept { return state_->bytes; }
std::size_t staging_pool::count() const noexcept { return state_->count; }
std::size_t staging_pool::available() const noexcept { return state_->free.size(); }
std::optional<buffer> staging_pool::try_acquire() { return state_->take(); }

void staging_pool::acquire(detail::staging_state& state, detail::staging_request& begin) {
  if (auto b = state.take()) return begin.complete({}, std::move(*b));
  state.waiters.push_back(begin.wait());
}

}  // namespace cokv

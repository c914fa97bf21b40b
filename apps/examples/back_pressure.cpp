// Keeps a fast producer from running away: chunks go through a channel that holds four, and whoever sends into a full
// channel waits. The consumer copies each one to the device before it takes the next.
#include <algorithm>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "example.hpp"

using namespace cokv;

constexpr int chunks = 32;
constexpr std::size_t bytes = 64 << 10;  // of a chunk

awaitable<void> back_pressure(const example::options& options) {
  auto ex = co_await asio::this_coro::executor;
  device gpu = open_device(ex, options.device).value();
  stream copies = gpu.make_stream({.name = "copies"}).value();
  buffer memory = gpu.allocate(chunks * bytes).value();

  channel<buffer> queue(ex, 4);
  int sent = 0, received = 0, most = 0;
  auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      for (; sent < chunks; ++sent) {
        co_await queue.async_send(buffer::host(bytes));  // waits while four are in the queue
        most = std::max(most, sent + 1 - received);
      }
      queue.close();  // what is in it can still be received
    });
    while (result<buffer> chunk = co_await queue.async_receive(as_result)) {
      copies.copy(memory.slice(received * bytes, bytes), *chunk);
      co_await copies.record().async_wait();
      ++received;
    }
  });
  if (!verdict) throw boost::system::system_error(verdict.error());
  std::printf("%d sent, %d received, never more than %d on the way\n", sent, received, most);
}

int main(int argc, char** argv) { return example::run(argc, argv, back_pressure); }

// Takes the first of two: the same work goes to two devices, the first answer counts, and the wait for the other ends.
// A wait is all that is cancelled: what runs on the slower device runs to its end and keeps what it uses.
#include <array>

#include "cokv/runtime/with.hpp"
#include "example.hpp"

using namespace cokv;

awaitable<void> first_of_two(const example::options& options) {
  auto ex = co_await asio::this_coro::executor;
  // In virtual time an A100 against the one that was asked for; else two devices of the same name.
  const bool simulated = options.device.starts_with("sim:");
  const std::array<std::string, 2> names{simulated ? "sim:a100" : options.device, options.device};

  std::array<stream, 2> streams;
  std::array<std::shared_ptr<long>, 2> answers{std::make_shared<long>(), std::make_shared<long>()};
  for (int i = 0; i < 2; ++i) {
    streams[i] = open_device(ex, names[i]).value().make_stream().value();
    streams[i].launch("think", [answer = answers[i]] { *answer = 42; }, {.flops = 1e12});
  }

  int first = -1;
  auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (int i = 0; i < 2; ++i) {
      group.spawn([&, i]() -> awaitable<void> {
        co_await streams[i].record().async_wait();
        first = i;
        group.cancel();  // the scope has what it wanted
      });
    }
    co_return;
  });
  if (!verdict) throw boost::system::system_error(verdict.error());
  std::printf("device %d (%s) was first: %ld\n", first, names[first].c_str(), *answers[first]);
}

int main(int argc, char** argv) { return example::run(argc, argv, first_of_two); }

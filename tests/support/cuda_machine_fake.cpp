#include "support/cuda_machine.hpp"
#include "support/fake_cuda.hpp"

namespace cokv::test {

void on_cuda(const std::function<void(cuda_machine&)>& body) {
  for (auto signal : {completion_signal::word, completion_signal::event})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(seed);
      CAPTURE(signal == completion_signal::word);
      fake_cuda::reset({.mode = fake_cuda::mode::threaded, .seed = seed, .max_delay = 3, .batches = seed % 2 == 0});
      {
        cuda_machine m;
        m.device = open_device(m.context.get_executor(), "cuda:0", {.signal = signal}).value();
        body(m);
      }
      const auto wrong = fake_cuda::violations();
      CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
      CHECK(fake_cuda::live_streams() == 0);
      CHECK(fake_cuda::live_events() == 0);
      CHECK(fake_cuda::live_graphs() == 0);
      CHECK(fake_cuda::live_allocations() == 0);
    }
}

}  // namespace cokv::test

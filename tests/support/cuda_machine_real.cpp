#include "support/cuda_machine.hpp"

namespace cokv::test {

void on_cuda(const std::function<void(cuda_machine&)>& body) {
  for (auto signal : {completion_signal::word, completion_signal::event}) {
    CAPTURE(signal == completion_signal::word);
    cuda_machine m;
    auto device = open_device(m.context.get_executor(), "cuda:0", {.signal = signal});
    if (!device) {
      MESSAGE("skipped: ", device.error().message(), " (", explain_device("cuda:0"), ")");
      continue;
    }
    m.device = std::move(*device);
    body(m);
  }
}

}  // namespace cokv::test

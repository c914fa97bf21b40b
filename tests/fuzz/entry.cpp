// One libFuzzer target: COKV_FUZZ_TARGET names the function of harness.hpp. At its end it says what it reached.
#include <cstdio>
#include <cstdlib>

#include "fuzz/harness.hpp"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  cokv::fuzz::reached();  // made before, so destroyed after what is printed at the exit
  std::atexit([] {
    for (const auto& [state, times] : cokv::fuzz::reached())
      std::printf("%12llu  %.*s\n", static_cast<unsigned long long>(times), static_cast<int>(state.size()),
                  state.data());
    std::puts("fuzz: 1 passed, 0 failed");  // a finding ends the process elsewhere
  });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cokv::fuzz::COKV_FUZZ_TARGET(std::as_bytes(std::span(data, size)));
  return 0;
}

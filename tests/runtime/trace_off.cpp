// Compiled with COKV_TRACING=0 and only looked at (trace_off.cmake): everything that a caller of the recorder writes.
#include "cokv/runtime/trace.hpp"

static_assert(!cokv::trace::compiled);

int traced_step(cokv::trace::recorder& recorder, int bytes) {
  auto span = recorder.scope("scheduler", "a step with a name that is longer than a short string");
  span.arg("bytes", std::int64_t{bytes});
  if (recorder.enabled()) recorder.add({"copies", "copy", recorder.now(), recorder.now(), {}});
  return bytes + 1;
}

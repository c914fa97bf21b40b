// Records what every sim_context of this process does, as traces that Perfetto opens: hosts, connections, disks,
// streams and injected faults as tracks. A trace is written when its context goes, whatever came of the run: a
// failure, a deadlock, a livelock.
//
//     trace_simulations("run.json");   // the first context's; run.2.json is the second's, at most a hundred
//
// Test programs do so when the environment variable COKV_TRACE names a file.
#pragma once

#include <string>

namespace cokv::test {

// From here on; an empty path ends it. Throws std::runtime_error when the file can't be written.
void trace_simulations(const std::string& path);

}  // namespace cokv::test

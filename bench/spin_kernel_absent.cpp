#include "cokv/runtime/error.hpp"
#include "spin_kernel.hpp"

namespace cokv::bench {

bool set_blocking_wait(blocking_wait) { return false; }
error_code copy_by_hand(stream& s, const std::vector<copy_op>& ops) { return s.copy_batch(ops); }
error_code synchronize(stream&) { return errc::unsupported; }
int launch_spin(void*, std::uint64_t) { return 1; }  // never asked: there is no native stream

}  // namespace cokv::bench

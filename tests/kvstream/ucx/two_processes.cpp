// Two processes: one is killed or stopped in the middle of transfers. The other one is this program again, since a
// process that has begun to use UCX cannot be forked.
#include <cstdlib>

#include "kvstream/link/other_process.hpp"
#include "linked.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr const char* telling = "COKV_TEST_TELL";  // the descriptor where the other process says what it offers

class over_ucx : public other_process {
 public:
  over_ucx()
      : other_process([](int to) {
          ::setenv(telling, std::to_string(to).c_str(), 1);
          ::execl("/proc/self/exe", "other", "--no-skip", "--minimal", "--test-case=ucx: the other process", nullptr);
        }) {}
  std::string url() const { return "ucx://127.0.0.1:" + std::to_string(port()); }
};

}  // namespace

TEST_CASE("ucx: the other process" * doctest::skip()) {
  const char* to = std::getenv(telling);
  REQUIRE(to);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  asio::io_context context(1);
  window_table windows(context.get_executor());
  other_process::offer("ucx://127.0.0.1:0", blank(4 << 20), windows, context, std::atoi(to));
}

TEST_CASE("ucx: a process that is killed, or stands still for too long, is an error to what it breaks, and gone") {
  for (int how : {SIGKILL, SIGSTOP}) {
    CAPTURE(how);
    run_body(outlive<over_ucx>(how, 5));
  }
}

#include "doctor/report.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <sstream>

#include "cli/cli.hpp"
#include "cokv/kvstream/link_library.hpp"
#include "cokv/runtime/error.hpp"
#include "doctor/probe.hpp"

using namespace cokv;

namespace {

doctor::facts small_machine() {
  doctor::facts f;
  f.cpu_model = "Example CPU";
  f.cores = 2;
  f.avx2 = true;
  f.memory_total = 8ull << 30;
  f.memory_available = 1ull << 30;
  f.locked_limit = 64 << 10;
  f.io_uring_errno = EPERM;
  f.cuda_driver = {"CUDA driver", "libcuda.so.1", false, "no driver"};
  f.libraries = {{"NCCL", "libnccl.so.2", false, "not found"}, {"MPI", "libmpi.so.40", true, "libmpi.so.40"}};
  return f;
}

const doctor::finding& about(const std::vector<doctor::finding>& all, std::string_view topic) {
  for (auto& f : all)
    if (f.topic == topic) return f;
  FAIL("no finding about ", topic);
  return all.front();
}

}  // namespace

TEST_CASE("doctor: what limits a small machine is said with its consequence") {
  auto all = doctor::judge(small_machine());
  CHECK(about(all, "cpu").is == doctor::state::limited);
  CHECK(about(all, "cpu").meaning.find("--dtype f32") != std::string::npos);
  CHECK(about(all, "memory").is == doctor::state::limited);
  CHECK(about(all, "locked memory").meaning.find("ulimit -l") != std::string::npos);
  CHECK(about(all, "io_uring").is == doctor::state::limited);
  CHECK(about(all, "CUDA").is == doctor::state::absent);
  CHECK(about(all, "NCCL").is == doctor::state::absent);
  CHECK(about(all, "MPI").is == doctor::state::good);
}

TEST_CASE("doctor: a GPU that this binary cannot use is not called usable") {
  auto f = small_machine();
  f.cuda_driver = {"CUDA driver", "libcuda.so.1", true, "driver for CUDA 13.0"};
  f.cuda_devices = {{"Example GPU", 80ull << 30}};
  CHECK(about(doctor::judge(f), "cuda:0").is == doctor::state::limited);
  CHECK(doctor::to_json(f, doctor::judge(f)).at("devices").as_array().size() == 1);
  f.cuda_built = true;
  CHECK(about(doctor::judge(f), "cuda:0").is == doctor::state::good);
  CHECK(doctor::to_json(f, doctor::judge(f)).at("devices").as_array().size() == 2);
}

TEST_CASE("doctor: probes this machine and prints one JSON object") {
  auto f = doctor::probe();
  CHECK(f.cores >= 1);
  CHECK(f.memory_total > 0);
  CHECK(f.memory_available <= f.memory_total);
  for (auto [name, scheme] : {std::pair{"NCCL", "nccl"}, {"MPI", "mpi"}, {"UCX", "ucx"}}) {
    const auto found = std::ranges::find(f.libraries, std::string(name), &doctor::library::name);
    REQUIRE(found != f.libraries.end());
    const auto version = link_library(scheme);
    CHECK(found->found == version.has_value());
    if (version) CHECK(found->detail == *version);
  }
  CHECK(link_library("tcp").error() == errc::invalid_argument);
  std::ostringstream out, err;
  CHECK(cli::run({"doctor", "--json"}, out, err) == 0);
  auto parsed = boost::json::parse(out.str());
  CHECK(parsed.at("cpu").at("cores").to_number<int>() == f.cores);
  CHECK(parsed.at("findings").as_array().size() >= 8);
}

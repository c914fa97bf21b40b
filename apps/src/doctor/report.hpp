// What `cokv doctor` knows about a machine, and what it says about it. Probing (probe.hpp) fills `facts`; everything
// here is pure, so any machine can be described in a test.
//
//     std::cout << doctor::to_text(doctor::judge(doctor::probe()));
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cokv::doctor {

struct library {
  std::string name;    // "NCCL"
  std::string soname;  // what was looked for
  bool found = false;
  std::string detail;  // a version, or why not
};

struct cuda_device {
  std::string name;
  std::uint64_t memory = 0;  // bytes
};

struct facts {
  std::string cpu_model;
  int cores = 0;  // that this process may use
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false;
  std::uint64_t memory_total = 0, memory_available = 0;  // bytes
  std::optional<std::uint64_t> locked_limit;             // bytes; none: unlimited
  int io_uring_errno = 0;                                // 0: a ring could be made
  bool cuda_built = false;                               // this binary has the CUDA device
  library cuda_driver;
  std::vector<cuda_device> cuda_devices;
  std::vector<library> libraries;  // NCCL, MPI, UCX, hiredis
};

enum class state { good, limited, absent };

struct finding {
  std::string topic;  // "io_uring"
  state is = state::good;
  std::string value;    // what was found
  std::string meaning;  // what follows for the user
};

std::vector<finding> judge(const facts& f);
std::string to_text(const std::vector<finding>& findings);
boost::json::object to_json(const facts& f, const std::vector<finding>& findings);

}  // namespace cokv::doctor

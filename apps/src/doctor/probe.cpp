#include "doctor/probe.hpp"

#include <dlfcn.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cerrno>
#include <fstream>

#include "cokv/kvstream/link_library.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"

namespace cokv::doctor {
namespace {

// A shared library for as long as it is being asked; never unloaded, as a driver may have started threads.
struct loaded {
  void* handle;
  explicit loaded(const char* soname) : handle(::dlopen(soname, RTLD_LAZY | RTLD_LOCAL)) {}
  template <class F>
  F find(const char* symbol) const {
    return handle ? reinterpret_cast<F>(::dlsym(handle, symbol)) : nullptr;
  }
};

void probe_cpu(facts& f) {
  cpu_set_t set;
  CPU_ZERO(&set);
  f.cores = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  f.cpu_model = "unknown CPU";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) {
      if (auto colon = line.find(": "); colon != std::string::npos) f.cpu_model = line.substr(colon + 2);
      break;
    }
#if defined(__x86_64__)
  f.avx2 = __builtin_cpu_supports("avx2");
  f.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) f.avx512_bf16 = f.avx512 && (a & (1u << 5));
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & (1u << 22)) && (d & (1u << 24))) {
    // The kernel hands out tile state on request only: without its leave the instructions fault.
    constexpr int arch_req_xcomp_perm = 0x1023, xfeature_tile_data = 18;
    f.amx_bf16 = ::syscall(SYS_arch_prctl, arch_req_xcomp_perm, xfeature_tile_data) == 0;
  }
#endif
}

void probe_memory(facts& f) {
  const auto there = detail::read_machine_memory();
  f.memory_total = there.total, f.memory_available = there.available;
  rlimit locked{};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY) f.locked_limit = locked.rlim_cur;
}

void probe_io_uring(facts& f) {
  io_uring_params params{};
  const long fd = ::syscall(SYS_io_uring_setup, 2, &params);
  f.io_uring_errno = fd < 0 ? errno : 0;
  if (fd >= 0) ::close(int(fd));
}

void probe_cuda(facts& f) {
  f.cuda_driver = {"CUDA driver", "libcuda.so.1", false, "no driver (libcuda.so.1 not found)"};
  loaded lib("libcuda.so.1");
  if (!lib.handle) return;
  auto init = lib.find<int (*)(unsigned)>("cuInit");
  auto version = lib.find<int (*)(int*)>("cuDriverGetVersion");
  auto count = lib.find<int (*)(int*)>("cuDeviceGetCount");
  auto get = lib.find<int (*)(int*, int)>("cuDeviceGet");
  auto name = lib.find<int (*)(char*, int, int)>("cuDeviceGetName");
  auto memory = lib.find<int (*)(std::size_t*, int)>("cuDeviceTotalMem_v2");
  if (!init || !version || !count || !get || !name || !memory) {
    f.cuda_driver.detail = "libcuda.so.1 lacks the functions of a driver";
    return;
  }
  if (int code = init(0); code != 0) {
    f.cuda_driver.detail = fmt::format("the driver does not start (error {})", code);
    return;
  }
  int number = 0, devices = 0;
  version(&number);
  f.cuda_driver.found = true;
  f.cuda_driver.detail = fmt::format("driver for CUDA {}.{}", number / 1000, number % 1000 / 10);
  if (count(&devices) != 0) devices = 0;
  for (int i = 0; i < devices; ++i) {
    int device = 0;
    char text[256] = {};
    std::size_t bytes = 0;
    if (get(&device, i) == 0 && name(text, sizeof text - 1, device) == 0 && memory(&bytes, device) == 0)
      f.cuda_devices.push_back({text, bytes});
  }
}

library probe_library(std::string name, std::initializer_list<const char*> sonames) {
  library out{std::move(name), *sonames.begin(), false, {}};
  for (const char* soname : sonames)
    if (loaded lib(soname); lib.handle) {
      out.soname = soname;
      out.found = true;
      out.detail = soname;
      return out;
    }
  out.detail = fmt::format("{} not found", out.soname);
  return out;
}

// What the links themselves say: the same library, loaded with the same precautions.
library probe_link(std::string name, std::string_view scheme, std::string soname) {
  auto version = link_library(scheme);
  library out{std::move(name), std::move(soname), bool(version), {}};
  out.detail = version ? *version : fmt::format("{} not found, or not used by this build", out.soname);
  return out;
}

}  // namespace

facts probe() {
  facts f;
  probe_cpu(f);
  probe_memory(f);
  probe_io_uring(f);
#if defined(COKV_HAVE_CUDA)
  f.cuda_built = true;
#endif
  probe_cuda(f);
  f.libraries.push_back(probe_link("NCCL", "nccl", "libnccl.so.2"));
  f.libraries.push_back(probe_link("MPI", "mpi", "libmpi.so.40"));
  f.libraries.push_back(probe_link("UCX", "ucx", "libucp.so.0"));
  f.libraries.push_back(probe_library("hiredis", {"libhiredis.so.0.14", "libhiredis.so.1.1.0", "libhiredis.so"}));
  return f;
}

}  // namespace cokv::doctor

#include "doctor/report.hpp"

#include <spdlog/fmt/fmt.h>

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <cstring>

namespace cokv::doctor {
namespace {

constexpr std::uint64_t MiB = 1ull << 20;
constexpr std::uint64_t GiB = 1ull << 30;

std::string bytes_text(std::uint64_t n) {
  if (n >= GiB) return fmt::format("{:.1f} GiB", double(n) / double(GiB));
  if (n >= MiB) return fmt::format("{:.1f} MiB", double(n) / double(MiB));
  return fmt::format("{:.0f} KiB", double(n) / 1024);
}

finding judge_cpu(const facts& f) {
  std::string features;
  for (auto [has, name] :
       {std::pair{f.avx2, "AVX2"}, {f.avx512, "AVX-512"}, {f.avx512_bf16, "AVX-512 bf16"}, {f.amx_bf16, "AMX bf16"}})
    if (has) features += features.empty() ? name : std::string(", ") + name;
  if (features.empty()) features = "none of AVX2, AVX-512, AMX";
  finding out{"cpu", state::good, fmt::format("{} ({} usable cores; {})", f.cpu_model, f.cores, features), {}};
  if (f.amx_bf16)
    out.meaning = "bf16 matrix products run on AMX tiles: use --dtype bf16 for speed, f32 to compare answers exactly";
  else if (f.avx512_bf16)
    out.meaning = "bf16 matrix products run on AVX-512: bf16 and f32 are both usable";
  else
    out = {"cpu", state::limited, out.value, "bf16 is emulated here: --dtype f32 is the faster choice"};
  return out;
}

finding judge_io_uring(const facts& f) {
  if (f.io_uring_errno == 0)
    return {"io_uring", state::good, "available",
            "the file tier uses it for small reads, and for all that goes past the system's cache"};
  return {"io_uring", state::limited, fmt::format("not available: {}", std::strerror(f.io_uring_errno)),
          "the file tier uses a pool of pread and pwrite threads: same results, more CPU for small reads"};
}

finding judge_locked(const facts& f) {
  if (!f.locked_limit) return {"locked memory", state::good, "unlimited", "pinned staging memory has no limit"};
  if (*f.locked_limit >= GiB)
    return {"locked memory", state::good, bytes_text(*f.locked_limit), "enough for pinned staging memory"};
  return {"locked memory", state::limited, bytes_text(*f.locked_limit),
          "too little to pin staging memory for a device or a network card; raise it with ulimit -l"};
}

void judge_cuda(const facts& f, std::vector<finding>& out) {
  if (!f.cuda_driver.found) {
    out.push_back({"CUDA", state::absent, f.cuda_driver.detail, "models run on the CPU (--device cpu)"});
    return;
  }
  if (f.cuda_devices.empty()) {
    out.push_back({"CUDA", state::absent, f.cuda_driver.detail + ", no device",
                   "the driver is here but shows no device: models run on the CPU"});
    return;
  }
  int index = 0;
  for (const auto& d : f.cuda_devices) {
    const auto name = fmt::format("cuda:{}", index++);
    const auto value = fmt::format("{}, {} ({})", d.name, bytes_text(d.memory), f.cuda_driver.detail);
    if (f.cuda_built)
      out.push_back(
          {name, state::good, value,
           "its streams, events and memory can be used, and models compute on it where cuBLASLt is installed"});
    else
      out.push_back({name, state::limited, value, "this binary was built without CUDA: build the preset cuda"});
  }
}

std::string_view use_of(std::string_view library) {
  if (library == "NCCL") return "links at nccl://HOST:PORT: KV from GPU to GPU";
  if (library == "MPI") return "links at mpi://RANK: KV between the ranks of an MPI job";
  if (library == "UCX") return "links at ucx://HOST:PORT: KV over RDMA and what else UCX finds";
  return "a Redis Cluster as the shared KV store; this version does not use it";
}

}  // namespace

std::vector<finding> judge(const facts& f) {
  std::vector<finding> out;
  out.push_back(judge_cpu(f));
  out.push_back({"memory", f.memory_available < 2 * GiB ? state::limited : state::good,
                 fmt::format("{} available of {}", bytes_text(f.memory_available), bytes_text(f.memory_total)),
                 fmt::format("a host tier of up to {} leaves half for the model (--kv-host)",
                             bytes_text(f.memory_available / 2))});
  out.push_back(judge_locked(f));
  out.push_back(judge_io_uring(f));
  judge_cuda(f, out);
  for (const auto& lib : f.libraries)
    out.push_back(
        {lib.name, lib.found ? state::good : state::absent, lib.detail, fmt::format("for {}", use_of(lib.name))});
  return out;
}

std::string to_text(const std::vector<finding>& findings) {
  std::string out;
  for (const auto& f : findings) {
    const char* mark = f.is == state::good ? "ok     " : f.is == state::limited ? "limited" : "absent ";
    out += fmt::format("{}  {:<14} {}\n{:25}{}\n", mark, f.topic, f.value, "", f.meaning);
  }
  return out;
}

boost::json::object to_json(const facts& f, const std::vector<finding>& findings) {
  namespace json = boost::json;
  json::object out;
  out["cpu"] = {{"model", f.cpu_model},         {"cores", f.cores},      {"avx2", f.avx2}, {"avx512", f.avx512},
                {"avx512_bf16", f.avx512_bf16}, {"amx_bf16", f.amx_bf16}};
  out["memory"] = {{"total", f.memory_total}, {"available", f.memory_available}};
  out["locked_memory_limit"] = f.locked_limit ? json::value(*f.locked_limit) : json::value(nullptr);
  out["io_uring"] = f.io_uring_errno == 0;
  json::array devices{"cpu"};
  for (std::size_t i = 0; f.cuda_built && i < f.cuda_devices.size(); ++i)
    devices.push_back(json::value(fmt::format("cuda:{}", i).c_str()));
  out["devices"] = std::move(devices);
  json::array gpus;
  for (const auto& d : f.cuda_devices) gpus.push_back({{"name", d.name}, {"memory", d.memory}});
  out["cuda"] = {
      {"built", f.cuda_built}, {"driver", f.cuda_driver.found}, {"detail", f.cuda_driver.detail}, {"gpus", gpus}};
  json::object libraries;
  for (const auto& lib : f.libraries) libraries[lib.name] = {{"found", lib.found}, {"detail", lib.detail}};
  out["libraries"] = std::move(libraries);
  json::array list;
  for (const auto& x : findings)
    list.push_back({{"topic", x.topic},
                    {"state", x.is == state::good      ? "ok"
                              : x.is == state::limited ? "limited"
                                                       : "absent"},
                    {"value", x.value},
                    {"meaning", x.meaning}});
  out["findings"] = std::move(list);
  return out;
}

}  // namespace cokv::doctor

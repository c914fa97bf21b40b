// Where KV comes in unless --link says: the best way first that this machine has.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cokv/kvstream/link_library.hpp"
#include "cokv/runtime/net.hpp"

namespace cokv::serve {

// A socket in `folder` for peers of this machine, of GPUs too and first where KV is in one's memory, UCX where there is an
// RDMA adapter (an entry in `adapters`) and the library, and TCP.
inline std::vector<std::string> default_doors(const std::string& host, const std::string& life, bool on_gpu,
                                              const std::filesystem::path& folder,
                                              const std::filesystem::path& adapters = "/sys/class/infiniband") {
  std::error_code none;
  const bool rdma = std::filesystem::directory_iterator(adapters, none) != std::filesystem::directory_iterator();
  std::vector<std::string> out;
  if (on_gpu) out.push_back("cuda_ipc://" + (folder / ("cokv-" + life + ".gpu")).string());
  out.push_back("shm://" + (folder / ("cokv-" + life + ".kv")).string());
  if (rdma && link_library("ucx")) out.push_back("ucx://" + endpoint{host, 0}.to_string());
  out.push_back("tcp://" + endpoint{host, 0}.to_string());
  return out;
}

}  // namespace cokv::serve

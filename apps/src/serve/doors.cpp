#include "serve/doors.hpp"

#include <spdlog/spdlog.h>

#include <filesystem>

#include "cokv/runtime/error.hpp"
#include "serve/default_doors.hpp"

namespace cokv::serve {

void open_doors(cluster::link_door& door, const options& o, const std::string& host, const std::string& life) {
  const auto folder = std::filesystem::temp_directory_path();
  const bool on_gpu = o.device.starts_with("cuda:") && o.swap_by != "microbatch";  // is where KV comes in
  for (auto& url : o.links.empty() ? default_doors(host, life, on_gpu, folder) : o.links) {
    // An address that stands for all of a machine's is none that others can call.
    if (o.advertise.empty() && (url.find("://0.0.0.0:") != url.npos || url.find("://[::]:") != url.npos))
      throw config_error("--advertise: has to say what others call this machine, since KV comes in at " + url);
    const auto ec = door.listen(url);
    if (ec && o.links.empty() && url.starts_with("ucx://"))
      spdlog::warn("no KV comes in at {}: {}", url, ec.message());
    else if (ec)
      throw config_error("--link " + url + ": " + ec.message());
  }
}

std::vector<std::string> advertised(const cluster::link_door& door, const options& o) {
  auto out = door.urls();
  for (auto& url : out) {
    const auto scheme = url.find("://"), port = url.rfind(':');
    if (o.advertise.empty() || scheme == url.npos || url.starts_with("shm://") || url.starts_with("cuda_ipc://"))
      continue;
    const bool six = o.advertise.find(':') != o.advertise.npos;
    url = url.substr(0, scheme + 3) + (six ? '[' + o.advertise + ']' : o.advertise) + url.substr(port);
  }
  return out;
}

}  // namespace cokv::serve

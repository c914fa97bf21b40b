// What a worker's refusal means for a router: whether nothing comes of waiting.
//
//     if (auto no = why_no_worker(reply.code)) throw config_error(url + ": " + *no);
#pragma once

#include <optional>
#include <string>

namespace cokv::cluster {

inline std::optional<std::string> why_no_worker(unsigned status) {
  if (status == 401) return "does not know the key (--worker-key-file)";
  if (status == 403) return "gives the key no right admin (--worker-key-file)";
  if (status == 404) return "is no worker (--role prefill or decode)";
  return std::nullopt;
}

}  // namespace cokv::cluster

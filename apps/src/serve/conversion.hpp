// --convert-kv, and the memory that KV is in.
#pragma once

#include <memory>

#include "cluster/converters.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

// Of a worker that sends KV. Throws config_error naming the flag.
inline std::unique_ptr<cluster::converters> converters_of(device& where, const options& o) {
  if (!o.convert_kv || o.role != "prefill") return nullptr;
  auto moves = where.make_stream({.name = "convert"});
  if (!moves) throw config_error("--convert-kv: " + moves.error().message());
  return std::make_unique<cluster::converters>(where, std::move(*moves));
}

// Workers of this machine that send to it copy into it themselves, or their GPUs do.
inline memory_kind kv_memory_of(const options& o) {
  if (o.role != "decode") return memory_kind::device;
  return o.device == "cpu"               ? memory_kind::shared
         : o.device.starts_with("cuda:") ? memory_kind::exportable
                                         : memory_kind::device;
}

}  // namespace cokv::serve

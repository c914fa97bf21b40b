// Which of the libraries that some links need is on this machine: they are loaded at run time, by the first link of their
// kind, so a program starts without them.
//
//     auto ucx = link_library("ucx");  // "UCX 1.13.0", or why ucx:// would be refused
#pragma once

#include <string>
#include <string_view>

#include "cokv/runtime/result.hpp"

namespace cokv {

// Name and version of what links of this scheme load, "mpi", "nccl" or "ucx"; it stays loaded. errc::unsupported: this
// build can't use it, or the library isn't here, or is too old. errc::invalid_argument: a scheme that loads nothing.
// From any thread.
result<std::string> link_library(std::string_view scheme);

}  // namespace cokv

// NCCL, found at run time: nothing of it is linked, so a program starts where there is none. The functions that
// communicators need.
#pragma once

#include <nccl.h>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

struct nccl_api {
  // `name` as dlopen takes it. errc::unsupported when there is no such library, or it is older than what this was
  // compiled with.
  static result<nccl_api> load(const char* name);
  // What COKV_NCCL_LIBRARY names, or libnccl.so.2.
  static result<nccl_api> load();
  // For tests: what load() gives from now on. Null: the library again.
  static void stand_in(const nccl_api* api);

#define COKV_NCCL_FUNCTIONS(of)                                                                             \
  of(AllReduce) of(CommAbort) of(CommDestroy) of(CommFinalize) of(CommGetAsyncError) of(CommInitRankConfig) \
      of(GetErrorString) of(GetUniqueId) of(GetVersion) of(GroupEnd) of(GroupStart) of(Recv) of(Send)
#define COKV_NCCL_MEMBER(name) decltype(&::nccl##name) name = nullptr;
  COKV_NCCL_FUNCTIONS(COKV_NCCL_MEMBER)
#undef COKV_NCCL_MEMBER
};

// From now on its texts are those of errors, as load() does: for a table that was not loaded.
void use_texts_of(const nccl_api& api);

// Success for what is merely in progress; else NCCL's own code and text, in a category "nccl".
error_code nccl_error(ncclResult_t status);

// What became of what the communicator was asked for last; ncclInProgress: it may not be asked for anything else yet.
ncclResult_t nccl_state(const nccl_api& api, ncclComm_t comm);

}  // namespace cokv::detail

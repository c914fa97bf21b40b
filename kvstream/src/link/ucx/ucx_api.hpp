// UCX, found at run time: nothing of it is linked, so a program starts where there is none. The functions that streams
// need.
#pragma once

#include <ucp/api/ucp.h>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

struct ucx_api {
  // `name` as dlopen takes it. errc::unsupported when there is no such library, or it is older than what this was
  // compiled with.
  static result<ucx_api> load(const char* name);
  // What COKV_UCX_LIBRARY names, or libucp.so.0.
  static result<ucx_api> load();

#define COKV_UCX_FUNCTIONS(of)                                                                                        \
  of(am_data_release) of(am_recv_data_nbx) of(am_send_nbx) of(cleanup) of(config_read) of(config_release)             \
      of(ep_close_nbx) of(ep_create) of(get_version) of(init_version) of(listener_create) of(listener_destroy)        \
          of(listener_query) of(listener_reject) of(request_free) of(worker_arm) of(worker_create) of(worker_destroy) \
              of(worker_get_efd) of(worker_progress) of(worker_set_am_recv_handler)
#define COKV_UCX_MEMBER(name) decltype(&::ucp_##name) name = nullptr;
  COKV_UCX_FUNCTIONS(COKV_UCX_MEMBER)
#undef COKV_UCX_MEMBER
};

// A status as a code: those that any network has as Asio's, others with UCX's own text.
error_code ucx_error(ucs_status_t status);

}  // namespace cokv::detail

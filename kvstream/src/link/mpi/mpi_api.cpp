#include "link/mpi/mpi_api.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "cokv/runtime/error.hpp"
#include "link/mpi/mpi_network.hpp"

namespace cokv::detail {

result<mpi_api> mpi_api::load(const char* name) {
  // Global: components that OpenMPI itself loads look for its symbols there.
  void* library = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (!library) return errc::unsupported;
  mpi_api api;
  bool whole = true;
  const auto find = [&](const char* symbol, auto& to) {
    to = reinterpret_cast<std::decay_t<decltype(to)>>(::dlsym(library, symbol));
    whole = whole && to;
  };
#define COKV_MPI_FIND(name) find("MPI_" #name, api.name);
  COKV_MPI_FUNCTIONS(COKV_MPI_FIND)
#undef COKV_MPI_FIND
  find("ompi_mpi_comm_world", api.world);
  find("ompi_mpi_byte", api.byte);
  find("ompi_mpi_errors_return", api.errors_return);
  find("ompi_request_null", api.no_request);
  if (!whole) return errc::unsupported;  // it stays loaded: a library that was there before may be in use
  return api;
}

result<mpi_api> mpi_api::load() {
  const char* name = std::getenv("COKV_MPI_LIBRARY");
  return load(name && *name ? name : "libmpi.so.40");
}

result<std::string> mpi_version() {
  auto api = mpi_api::load();
  if (!api) return api.error();
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (api->Get_library_version(text, &length) != MPI_SUCCESS) return errc::unsupported;
  const std::string_view whole(text, static_cast<std::size_t>(length));
  return std::string(whole.substr(0, whole.find(',')));  // how it was built follows
}

}  // namespace cokv::detail

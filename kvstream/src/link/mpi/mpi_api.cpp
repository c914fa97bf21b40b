#include "link/mpi/mpi_api.hpp"

#include "cokv/runtime/detail/shared_library.hpp"
#include "cokv/runtime/error.hpp"
#include "link/mpi/mpi_network.hpp"

namespace cokv::detail {

result<mpi_api> mpi_api::load(const char* name) {
  // Global: components that OpenMPI itself loads look for its symbols there.
  shared_library library(name, RTLD_NOW | RTLD_GLOBAL);
  mpi_api api;
#define COKV_MPI_FIND(name) library.find("MPI_" #name, api.name);
  COKV_MPI_FUNCTIONS(COKV_MPI_FIND)
#undef COKV_MPI_FIND
  library.find("ompi_mpi_comm_world", api.world);
  library.find("ompi_mpi_byte", api.byte);
  library.find("ompi_mpi_float", api.real);
  library.find("ompi_mpi_op_sum", api.sum);
  library.find("ompi_mpi_errors_return", api.errors_return);
  library.find("ompi_request_null", api.no_request);
  if (!library.whole()) return errc::unsupported;
  return api;
}

result<mpi_api> mpi_api::load() { return load(library_name("COKV_MPI_LIBRARY", "libmpi.so.40")); }

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

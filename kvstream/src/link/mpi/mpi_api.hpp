// OpenMPI, found at run time: nothing of it is linked, so a program starts where there is none. The functions that
// streams need, and handles that mpi.h only names.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

struct mpi_api {
  // `name` as dlopen takes it. errc::unsupported when there is no such library, or it is not OpenMPI.
  static result<mpi_api> load(const char* name);
  // What COKV_MPI_LIBRARY names, or libmpi.so.40.
  static result<mpi_api> load();

#define COKV_MPI_FUNCTIONS(of)                                                                                         \
  of(Comm_get_attr) of(Comm_idup) of(Comm_rank) of(Comm_set_errhandler) of(Comm_size) of(Comm_split) of(Error_string)  \
      of(Finalize) of(Finalized) of(Get_count) of(Get_library_version) of(Iallreduce) of(Improbe) of(Imrecv) of(Irecv) \
          of(Init_thread) of(Initialized) of(Is_thread_main) of(Isend) of(Query_thread) of(Test) of(Testsome)          \
              of(Type_commit) of(Type_create_hindexed) of(Type_free)
#define COKV_MPI_MEMBER(name) decltype(&::MPI_##name) name = nullptr;
  COKV_MPI_FUNCTIONS(COKV_MPI_MEMBER)
#undef COKV_MPI_MEMBER

  MPI_Comm world = nullptr;
  MPI_Datatype byte = nullptr, real = nullptr;  // real: of float
  MPI_Op sum = nullptr;
  MPI_Errhandler errors_return = nullptr;
  MPI_Request no_request = nullptr;
};

}  // namespace cokv::detail

// What a process has of MPI, once: the library, a communicator of our own, and who uses them now.
#pragma once

#include <memory>
#include <vector>

#include "link/mpi/mpi_api.hpp"

namespace cokv::detail {

class mpi_process {
 public:
  // Loads MPI and initialises it if the program has not; stays for the rest of the process, which finalises at exit what
  // this initialised. errc::unsupported: no MPI, or a level of threads that doesn't allow this one to use it;
  // errc::closed: finalised; errc::in_use: another context uses it. One that has it gives it back by release().
  static result<mpi_process*> acquire();
  void release();
  // What MPI may look at until the process ends.
  void bury(std::shared_ptr<void> memory) { buried_.push_back(std::move(memory)); }

  const mpi_api& api() const noexcept { return api_; }
  MPI_Comm comm() const noexcept { return comm_; }
  int size() const noexcept { return size_; }
  int rank() const noexcept { return rank_; }

  std::uint32_t most_tags() const noexcept { return static_cast<std::uint32_t>(most_tags_); }
  // The communicator is there when every rank has asked for it: get_ready() looks.
  bool ready() const noexcept { return ready_; }
  error_code get_ready();
  // A communicator of the ranks that say the same; all ranks call it, and wait for each other. As long as the process.
  result<MPI_Comm> split(int colour);
  int new_tag();  // ours alone for the rest of the process; 0 is nobody's

  error_code check(int status) const;

 private:
  explicit mpi_process(mpi_api api) : api_(api) {}
  error_code start();

  mpi_api api_;
  MPI_Comm comm_ = nullptr;
  MPI_Request duplicating_ = nullptr;
  bool ready_ = false;
  int size_ = 0, rank_ = 0;
  int last_tag_ = 0, most_tags_ = 0;
  std::vector<std::shared_ptr<void>> buried_;
};

// An MPI error class or code as the library words it.
const boost::system::error_category& mpi_category() noexcept;

}  // namespace cokv::detail

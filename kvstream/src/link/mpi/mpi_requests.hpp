// What MPI does for us now: messages on their way, asked after together.
#pragma once

#include <span>
#include <vector>

#include "cokv/runtime/detail/unique_function.hpp"
#include "link/mpi/mpi_process.hpp"

namespace cokv::detail {

class mpi_requests {
 public:
  explicit mpi_requests(const mpi_process& process) : process_(process) {}

  // Sends without waiting; `done` is called when MPI has read the bytes, maybe at once. They live until then.
  using outcome = unique_function<void(error_code)>;
  void send(const void* bytes, std::size_t n, int rank, int tag, outcome done);
  void send(std::span<const asio::const_buffer> pieces, int rank, int tag, outcome done);
  // What has come with that tag, if anything has: it is then to be received.
  struct arrival {
    MPI_Message message = nullptr;  // none: nothing
    int bytes = 0;
    int rank = 0;
  };
  error_code probe(int rank, int tag, arrival& found);
  void receive(arrival what, const std::vector<asio::mutable_buffer>& into, outcome done);

  // Sums up in place, over the communicator's ranks. Nobody else has the numbers, which live until MPI is done with them.
  void sum(std::span<float> numbers, MPI_Comm over, outcome done);

  // Calls what is done; how many. `failed`: MPI can't tell.
  std::size_t poll(error_code& failed);

  bool empty() const noexcept { return requests_.empty(); }
  bool writing() const noexcept;  // somebody's memory
  // Never asked after again: what they use is kept.
  void bury(mpi_process& in);

 private:
  struct request {
    outcome done;
    bool writes = false;  // our memory
  };
  void track(MPI_Request r, outcome done, bool writes);
  template <class Buffer>
  error_code describe(std::span<const Buffer> pieces, MPI_Datatype& as) const;

  const mpi_process& process_;
  std::vector<MPI_Request> requests_;
  std::vector<request> what_;  // of each
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace cokv::detail

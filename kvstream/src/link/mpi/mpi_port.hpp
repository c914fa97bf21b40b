// A context's way to the other ranks: one for a process, since one thread at a time may call MPI. Makes the calls by
// which streams begin, and asks for progress while there are streams, doors or calls. MPI has no descriptor to wait for,
// so the loop polls: under cokv::run() between its handlers, else by handlers of its own for as long as something comes
// (`spin`), then by a timer, at last every `longest_pause`, which costs two to three per cent of a core.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/progress.hpp"
#include "link/mpi/mpi_requests.hpp"

namespace cokv::detail {

class mpi_channel;
using mpi_accept = operation<void(error_code, byte_stream)>;
using mpi_transfer = operation<void(error_code, std::size_t)>;

// 16 bytes to tag 0 of a rank.
struct mpi_note {
  enum class what : std::uint8_t { call = 1, taken = 2, refused = 3 };
  std::uint32_t magic = 0x4d766b63;  // "ckvM"
  std::uint8_t version = 1;
  what kind = what::call;
  std::uint16_t reserved = 0;
  std::uint32_t about = 0;  // of taken and refused: the call's `tag`
  std::uint32_t tag = 0;    // where the sender takes what comes; of a refusal: an error as frame.hpp's to_wire() has it
};
static_assert(sizeof(mpi_note) == 16);

class mpi_port final : public asio::execution_context::service, public progress_source {
 public:
  inline static asio::execution_context::id id;
  explicit mpi_port(asio::execution_context& context) : service(context) {}

  // Errors: as mpi_process::acquire; errc::unsupported in virtual time.
  static result<mpi_port*> of(const asio::any_io_executor& ex);

  const mpi_process& process() const noexcept { return *process_; }
  const prepared_executor& executor() const noexcept { return executor_; }
  clock& time() const noexcept { return *time_; }
  mpi_requests& requests() noexcept { return *requests_; }

  // A stream to a rank, which waits to be answered.
  std::shared_ptr<mpi_channel> call(int rank);
  // errc::in_use: there is one.
  error_code open_door();
  void close_door();
  void accept(mpi_accept& op);

  // As mpi_process::split, with this one's place there.
  result<MPI_Comm> split(int colour, int& rank, int& size);
  // As mpi_requests::sum; asked after often until it is over, for a model's layer waits for it.
  void sum(std::span<float> numbers, MPI_Comm over, mpi_requests::outcome done);

  // Somebody here waits for something new.
  void touched();

  std::size_t poll() override;
  bool awaited() const override;
  void arm() override;

 private:
  void shutdown() override;
  bool needed() const;
  bool lingers() const;  // for what a closed stream's peer has still to take
  void keep_polling();
  void sleep(duration pause);
  std::size_t hear();
  void heard(const mpi_note& note, int rank);
  void tell(int rank, mpi_note note);
  std::shared_ptr<mpi_channel> find(int rank, std::uint32_t tag) const;
  std::shared_ptr<mpi_channel> add(int rank);
  void take_callers();
  void fail(error_code ec);

  mpi_process* process_ = nullptr;
  prepared_executor executor_;
  clock* time_ = nullptr;
  progress* progress_ = nullptr;
  error_code error_;  // of MPI itself: nothing works any more

  std::vector<std::shared_ptr<mpi_channel>> channels_;
  std::vector<std::shared_ptr<mpi_channel>> pumped_;
  struct caller {
    int rank = 0;
    std::uint32_t tag = 0;
  };
  std::deque<caller> callers_;
  operation_list<mpi_accept> accepting_;
  bool door_ = false;

  std::optional<mpi_requests> requests_;
  std::size_t sums_ = 0;  // under way
  bool polling_ = false;

  time_point found_{};  // when something was
  bool keen_ = false;   // more may come soon
  duration pause_{};
  bool posted_ = false, asleep_ = false;
  time_point wakes_at_{};
  asio::cancellation_signal waking_;
  std::uint64_t turn_ = 0;
};

}  // namespace cokv::detail

// One stream of bytes between two ranks, as messages of a tag each way. Large buffers travel as messages of their own,
// straight from where they lie to where the reader wants them; small ones are packed together. What the reader's list
// has no room for is kept until it asks again. No bytes: the end.
#pragma once

#include <memory>
#include <vector>

#include "link/message_cut.hpp"
#include "link/mpi/mpi_port.hpp"

namespace cokv::detail {

class mpi_channel : public std::enable_shared_from_this<mpi_channel> {
 public:
  mpi_channel(mpi_port& port, int rank, int here) : port_(port), rank_(rank), here_(here) {}

  int rank() const noexcept { return rank_; }
  std::uint32_t tag() const noexcept { return static_cast<std::uint32_t>(here_); }
  bool open() const noexcept { return open_; }
  // Closed at both ends, and nothing of it is under way.
  bool over() const noexcept;
  bool waited_for() noexcept { return open_ || !reader_.empty() || !writer_.empty(); }
  time_point closed_at() const noexcept { return closed_at_; }
  const prepared_executor& executor() const noexcept { return port_.executor(); }

  // Of who calls: until the other side takes the call, or not.
  bool uncalled() const noexcept { return !answered_ && !calling_ && open_ && !failed_; }
  void called() noexcept { calling_ = true; }
  bool calling() const noexcept { return calling_; }
  void await_answer(operation<void(error_code)>& op);
  void answered(int there);
  void refused(error_code why);

  void read(const byte_stream::mutable_buffers& into, mpi_transfer& op);
  void write(const byte_stream::const_buffers& from, mpi_transfer& op);
  void say_end();
  // What owns the bytes of the next write.
  void keep(std::shared_ptr<void> memory) { kept_ = std::move(memory); }
  void close();
  void leave();  // closes it where nobody is told any more
  void fail(error_code why);

  std::size_t pump();

 private:
  void receive(mpi_requests::arrival what);
  void begin_write();
  void send_packed(std::vector<std::byte> bytes);
  void send_direct(std::span<const asio::const_buffer> pieces, std::size_t bytes, const std::shared_ptr<void>& owner);
  void sent(std::size_t bytes, error_code ec);
  void finish_write();

  mpi_port& port_;
  const int rank_;
  const int here_;  // the tag of what comes
  int there_ = 0;   // the tag of what goes
  bool open_ = true, calling_ = false, answered_ = false;
  bool heard_end_ = false, said_end_ = false;
  error_code failed_;
  operation_list<operation<void(error_code)>> caller_;
  time_point closed_at_{};

  operation_list<mpi_transfer> reader_;
  byte_stream::mutable_buffers into_;
  bool receiving_ = false;
  std::vector<std::byte> spilt_;
  std::size_t spilt_at_ = 0;

  operation_list<mpi_transfer> writer_;
  byte_stream::const_buffers from_;
  bool writing_ = false;       // MPI reads the writer's memory
  std::size_t lent_ = 0;       // sends of it under way
  std::size_t sending_ = 0;    // all sends under way,
  std::size_t under_way_ = 0;  // and their bytes
  message_packing packing_{2 << 10};
  std::shared_ptr<void> kept_;
};

}  // namespace cokv::detail

// What a worker has decoded of one sequence, for whoever reads it: from any piece on, once more after a connection broke,
// and for a while after it ended. There is one reader; a newer one ends the one before.
//
//     sequence_log log(ex);
//     log.add(generated); log.end({});                          // whoever decodes
//     auto reader = log.read(from);                             // whoever was asked for pieces
//     while (auto next = co_await reader.next()) send(*next);   // result<line>; asio::error::eof behind the ending
//     co_await log.until_unread(10s);                           // orphaned: nobody has read for so long
//
// | operation      | cancellation                  | completes with                                                |
// |----------------|-------------------------------|---------------------------------------------------------------|
// | reader::next() | every kind: takes nothing     | a piece, then the ending, then eof; errc::closed: there is a  |
// |                |                               | newer reader                                                  |
// | until_unread() | every kind: the wait ends     | no reader was there for so long; forget() was called; or the  |
// |                |                               | sequence ended, where that is waited for as well              |
//
// Its size is the sequence's, which its engine bounds. Belongs to one context. A reader may outlive the log.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cluster/piece_json.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv::cluster {

class sequence_log {
  struct state;

 public:
  explicit sequence_log(asio::any_io_executor ex);
  sequence_log(const sequence_log&) = delete;
  ~sequence_log();  // readers get errc::closed

  // In order, and one ending; what comes behind it is dropped.
  void add(generated g);
  void end(ending e);
  void forget();  // nobody will read any more

  std::uint32_t pieces() const noexcept;
  bool ended() const noexcept;
  bool failed() const noexcept;  // ended with an error
  bool forgotten() const noexcept;
  bool being_read() const noexcept;

  class reader {
   public:
    reader(reader&&) noexcept = default;
    reader& operator=(reader&&) = delete;
    ~reader();
    awaitable<result<line>> next();

   private:
    friend class sequence_log;
    reader(std::shared_ptr<state> of, std::uint32_t from);

    std::shared_ptr<state> of_;
    std::uint64_t number_;
    std::uint32_t at_;
    bool told_ = false;  // the ending
  };
  // Pieces before `from` are not told; it may be beyond those that are there.
  reader read(std::uint32_t from);

  enum class until { unread, unread_or_ended };
  awaitable<void> until_unread(duration grace, until what = until::unread);

 private:
  std::shared_ptr<state> state_;
};

}  // namespace cokv::cluster

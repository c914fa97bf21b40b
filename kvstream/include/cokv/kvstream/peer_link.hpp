// A connection to one other worker, over which KV moves and messages go. Both sides expose windows of memory
// (window.hpp); through sinks and sources of the peer's windows every primitive of transfer.hpp and gather.hpp moves
// bytes right into them and out of them. Credits bound what is under way, so back-pressure is end to end; what arrives
// is verified there before a put completes, and verified here before a get does.
//
//     cokv::window_table windows(ex);
//     auto link = co_await async_connect(windows, "tcp://10.0.0.2:7600", {.name = "prefill-0"}, as_result);
//     window_ref landing = parse_ticket(co_await link->async_receive());
//     co_await async_gather(view, what, link->to(landing), 0, {.through = &through});
//
// | operation     | completes                          | cancellation                        | errors            |
// |---------------|------------------------------------|-------------------------------------|-------------------|
// | async_connect | both sides have greeted            | every kind: no link                 | [1] [2]           |
// | async_accept  | a peer has greeted                 | every kind: nothing was taken       | closed            |
// | async_send    | the link has taken the message     | every kind, waiting for room: not   | [3] too_large     |
// |               |                                    | sent                                |                   |
// | async_receive | the oldest message not taken yet   | every kind: nothing was taken       | [3]               |
// | async_closed  | the link is down                   | every kind ends the wait            | none: see error() |
// | to(): a put   | visible: verified in the window,   | as transfer.hpp says                | [3] [4]           |
// |               | unless a device copied it; local:  |                                     |                   |
// |               | it has left our memory             |                                     |                   |
// | from(): a get | verified here                      | as transfer.hpp says                | [3] [4]           |
// | async_commit  | the peer's window is committed     | not sent: nothing happened; sent:   | [3] [4] [5]       |
// |               |                                    | as a put that has begun             |                   |
//
// [1] the network's; deadline; invalid_argument (the URL, the options); unsupported (a scheme that this build lacks, or
// a peer of another version); [2] namespace_mismatch: KV of another model, dtype, layout or shard; [3] closed: one of the two
// said goodbye; unavailable: the connection broke, nothing was heard for `silence`, or what was asked is unanswered
// for so long; protocol, too_large, digest_mismatch: a peer that sent what it may not, or damaged; [4] stale_reference,
// closed (committed), permission_denied, out_of_range (the window); digest_mismatch: the bytes were damaged on their
// way, and what the range covers is undefined; wrong_device: pieces that the host can't reach, without
// window_table::stage(); [5] any of a put's: of what was put at level local into this window over this link, whose
// answers a commit waits for; then every later commit of the window over it fails so.
//
// A connection that breaks fails the transfers on it, no others, and is replaced by who connected; the first one takes
// the whole link down. What a failed put wrote is undefined, but it writes nothing any more once a later one over this
// link, or over the next link between the two workers, has begun. A message that async_send took is delivered once and
// in order, unless the link goes down.
//
// Over MPI the ranks of one job are each other's peers. OpenMPI is loaded by the first mpi:// of a process
// (COKV_MPI_LIBRARY names another than libmpi.so.40) and initialised unless the program has done so, with
// MPI_THREAD_SERIALIZED if not on the main thread; that blocks once, as MPI_Init does. What was initialised here is
// finalised at exit. Every rank of the job has to use mpi:// once before links come about, at the same place among its
// collective calls on MPI_COMM_WORLD: a communicator of our own is duplicated then. One context of a process uses MPI at a
// time. It is polled: under cokv::run() between handlers, with work at hand at full speed, idle every millisecond.
// Memory that a message has begun to come into is let go when MPI has done with it: a sender that stands still then
// holds it, and with it the link's end and a revocation, for longer than `silence`. OpenMPI ends the job with a rank that
// dies; under `mpirun --enable-recovery` the others' links to it fail with errc::unavailable, and MPI_Finalize would wait
// for it: leave by std::_Exit.
//
// Over ucx://HOST:PORT the bytes go whatever way UCX finds best (UCX_TLS and the rest of its settings are the user's). It is
// loaded by the first ucx:// of a context (COKV_UCX_LIBRARY names another than libucp.so.0), which has a worker of its own
// and waits for its descriptor. A port that was listened at stays bound until the context ends, and refuses.
//
// Over nccl://HOST:PORT what lies in device memory on the asker's side is moved by NCCL, from GPU to GPU; the rest,
// messages and whatever is told, goes over a TCP connection to HOST:PORT. Both sides window_table::stage() a CUDA
// device first, not the same one (else errc::wrong_device, or NCCL's own), and ask for no digests, which nobody would
// make of bytes between two devices: {.digest = digest_algorithm::none}, else errc::invalid_argument. It has one
// connection, and as much device memory for each link as stage() took of pinned. NCCL is loaded by the first nccl:// of
// a context (COKV_NCCL_LIBRARY names another than libnccl.so.2); without it, or in a build without it:
// errc::unsupported. Bringing two ranks together may take six times `greeting`, else errc::deadline. Such a put into a
// window of host memory is refused with errc::wrong_device. NCCL's errors (category "nccl") end the link. What NCCL's
// guide says of several communicators on one device holds for several links of a process.
//
// Over shm:///PATH a peer on the same machine copies by itself what lies in shared memory (kind shared, or
// allocate_shared()); what doesn't is sent. What such a peer was lent it may write as long as it lives: if it stands still, its
// transfers fail as ever, but a window is not revoked before it goes on or is dead. Bytes that are written while they are got are
// a digest_mismatch, where there are digests.
//
// cuda_ipc:///PATH is the same between processes with devices of one machine; both sides have staged one
// (window_table::stage()), else errc::unsupported. A window of kind exportable is opened by the peer's device, by its CUDA
// IPC handle, and what lies in a device's or in pinned memory there is copied in one go, not verified: nobody digests
// what goes between two devices. So it is over shm:// where both sides want no digests (digest_algorithm::none). With
// memory of another kind or a device that can't open it the bytes go by pinned chunks as over any link, with digests. Memory that was opened
// stays allocated until the peer is gone. What a device has begun to copy can't be called back: a revocation waits for it,
// also after the link or who asked for it ended.
//
// All of it belongs to one context, and is destroyed before it. For networks that are trusted: whoever can connect can
// end links between others; windows are reached by those alone who were told of them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/kvstream/transfer.hpp"
#include "cokv/kvstream/window.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"

namespace cokv {

struct link_options {
  std::string name = {};                                // of this worker, at most 255 bytes
  namespace_id ns = {};                                 // both sides' must be equal; zeros: any
  std::string topology = {};                            // told to the peer, at most 255 bytes
  digest_algorithm digest = digest_algorithm::xxh3_64;  // of what is put and got; none must be both sides'
  std::uint32_t connections = 1;                        // the smaller of both sides', 1 to 64
  std::uint32_t credits = 256;                          // puts and gets of the peer under way, a chunk each
  std::uint32_t messages = 64;                          // of the peer that wait here
  std::uint64_t chunk = 0;  // larger transfers are cut; 4 KiB to 64 MiB; 0: 1 MiB, of mpi:// and ucx:// 4
  std::uint64_t device_chunk = std::uint64_t{32} << 20;  // of what a device copies into or from another's; likewise
  bool device_copies = false;                   // that, unverified, beside digests of all else; cuda_ipc:// sets it
  duration greeting = std::chrono::seconds(5);  // for a connection and its first frame
  duration silence = std::chrono::seconds(10);  // a peer not heard of for so long is gone
};

// Who the other side says it is.
struct link_peer {
  std::string name;
  namespace_id ns;
  std::string topology;
  std::string address;
};

using link_message = std::vector<std::byte>;
constexpr std::size_t max_link_message = std::size_t{64} << 10;

namespace detail {
class link_session;
class link_acceptor;
using message_handler = asio::any_completion_handler<void(error_code, link_message)>;
using done_handler = asio::any_completion_handler<void(error_code)>;
}  // namespace detail

// Cheap to copy. When the last copy is gone it says goodbye: what is in flight then fails with errc::closed. Sinks and
// sources may outlive it.
class peer_link {
 public:
  peer_link() = default;
  explicit peer_link(std::shared_ptr<detail::link_session> session);

  explicit operator bool() const noexcept { return session_ != nullptr; }
  asio::any_io_executor get_executor() const;
  const link_peer& peer() const;
  error_code error() const;  // why it is down; none while it is up

  sink to(window_ref window) const;
  source from(window_ref window) const;

  // void(error_code)
  template <class Token = asio::deferred_t>
  auto async_send(link_message message, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [s = session_, message = std::move(message)](detail::done_handler h) mutable {
          send(s, std::move(message), std::move(h));
        });
  }
  // void(error_code, link_message)
  template <class Token = asio::deferred_t>
  auto async_receive(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, link_message)>(
        std::forward<Token>(token), get_executor(),
        [s = session_](detail::message_handler h) { receive(s, std::move(h)); });
  }
  // void(error_code)
  template <class Token = asio::deferred_t>
  auto async_closed(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [s = session_](detail::done_handler h) { closed(s, std::move(h)); });
  }
  // Says goodbye, for all copies. async_closed tells when nothing touches anybody's memory any more (over shm:// but for a
  // peer that stands still, which only window::async_revoke waits for).
  void close();

 private:
  static void send(const std::shared_ptr<detail::link_session>& s, link_message m, detail::done_handler h);
  static void receive(const std::shared_ptr<detail::link_session>& s, detail::message_handler h);
  static void closed(const std::shared_ptr<detail::link_session>& s, detail::done_handler h);

  std::shared_ptr<detail::link_session> session_;
  std::shared_ptr<void> goodbye_;
};

namespace detail {
using link_handler = asio::any_completion_handler<void(error_code, peer_link)>;
void connect_link(window_table windows, std::string url, link_options options, link_handler h);
void accept_link(const std::shared_ptr<link_acceptor>& from, link_handler h);
}  // namespace detail

// void(error_code, peer_link). The URL: tcp://HOST:PORT, ucx://HOST:PORT, nccl://HOST:PORT, shm:///PATH, cuda_ipc:///PATH, or
// mpi://RANK.
template <class Token = asio::deferred_t>
auto async_connect(window_table windows, std::string url, link_options options = {}, Token&& token = Token()) {
  auto ex = windows.get_executor();
  return detail::initiate_erased<void(error_code, peer_link)>(
      std::forward<Token>(token), ex,
      [windows, url, options](detail::link_handler h) { detail::connect_link(windows, url, options, std::move(h)); });
}

// Greets peers as they come; destroyed, it stops, and links that it gave live on.
class link_listener {
 public:
  link_listener() = default;
  link_listener(link_listener&&) noexcept = default;
  link_listener& operator=(link_listener&&) noexcept;
  ~link_listener() { close(); }

  // tcp://HOST:PORT, ucx://HOST:PORT, nccl://HOST:PORT, shm:///PATH, cuda_ipc:///PATH, or mpi://, which takes links
  // of any rank. errc::invalid_argument: the URL, the options; errc::unsupported: the URL; errc::wrong_device: nccl:// without a CUDA
  // device; errc::in_use: MPI, by another context or listener of this process; the network's own.
  static result<link_listener> listen(window_table windows, std::string_view url, link_options options = {});

  asio::any_io_executor get_executor() const;
  std::string url() const;  // with the port that was taken where 0 was asked for, or the rank
  // link_options::ns, of those that greet from now on. Who does not know it yet listens with one that nobody has.
  void set_namespace(const namespace_id& ns);
  void close();

  // void(error_code, peer_link)
  template <class Token = asio::deferred_t>
  auto async_accept(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, peer_link)>(
        std::forward<Token>(token), get_executor(),
        [a = acceptor_](detail::link_handler h) { detail::accept_link(a, std::move(h)); });
  }

 private:
  explicit link_listener(std::shared_ptr<detail::link_acceptor> a) : acceptor_(std::move(a)) {}
  std::shared_ptr<detail::link_acceptor> acceptor_;
};

}  // namespace cokv

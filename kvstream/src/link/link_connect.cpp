// Both ends of a link's beginning: who connects greets first, who accepts answers.
#include <algorithm>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/detail/background.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/detail/seed_source.hpp"
#include "cokv/runtime/error.hpp"
#include "link/link_lane.hpp"
#include "link/link_url.hpp"
#include "link/nccl/nccl_network.hpp"

namespace cokv {
namespace detail {
namespace {

constexpr std::size_t most_greetings = 64;  // under way at a listener
constexpr std::size_t most_unaccepted = 16;
constexpr std::uint32_t most_lanes = 64;

error_code check(const link_options& o, const link_url& url, const window_registry& windows) {
  if (url.of_devices && !windows.reach) return errc::unsupported;
  // Between two devices nobody looks at the bytes.
  if (url.scheme == link_scheme::nccl && o.digest != digest_algorithm::none) return errc::invalid_argument;
  // Frames are digested as they come; a tree is for what lies still.
  if (o.digest != digest_algorithm::none && o.digest != digest_algorithm::xxh3_64) return errc::invalid_argument;
  if (o.name.size() > 255 || o.topology.size() > 255) return errc::too_large;
  const bool sound = o.connections >= 1 && o.connections <= most_lanes && o.credits >= 1 && o.credits <= 65536 &&
                     o.messages >= 1 && o.messages <= 65536 && (o.chunk == 0 || o.chunk >= 4096) &&
                     o.chunk <= (std::uint64_t{64} << 20) && o.device_chunk >= 4096 &&
                     o.device_chunk <= most_by_device && o.greeting > duration(0) &&
                     o.silence >= std::chrono::milliseconds(1);
  return sound ? error_code() : make_error_code(errc::invalid_argument);
}

// Memory is copied by who calls: more connections of a kind that passes it are of no use.
// Nor are larger chunks than a device's memory passes through. What is carried comes in the order of one connection.
link_options fitting(link_options o, const link_url& url, const window_registry& windows) {
  o.device_copies |= url.of_devices;
  const bool in_messages = url.scheme == link_scheme::mpi || url.scheme == link_scheme::ucx;
  if (o.chunk == 0) o.chunk = std::uint64_t{1} << (in_messages ? 22 : 20);
  if (windows.reach) o.chunk = std::min(o.chunk, windows.reach->chunk());
  if (url.scheme == link_scheme::shm || url.scheme == link_scheme::nccl) o.connections = 1;
  return o;
}

link_hello hello_of(const link_options& o) {
  link_hello h;
  h.lanes = o.connections;
  h.credits = o.credits;
  h.messages = o.messages;
  h.chunk = o.chunk;
  h.ns = o.ns;
  h.name = o.name;
  h.topology = o.topology;
  return h;
}

error_code compare(const link_options& ours, const link_hello& theirs) {
  const bool either_any = ours.ns == namespace_id() || theirs.ns == namespace_id();
  if (!either_any && ours.ns != theirs.ns) return errc::namespace_mismatch;
  return {};
}

using greeted = std::pair<std::shared_ptr<link_lane>, link_hello>;

awaitable<result<greeted>> dial(const link_url& url, const link_options& options, link_hello mine) {
  auto stream = co_await connect_stream(url);
  if (!stream) co_return stream.error();
  auto lane = std::make_shared<link_lane>(std::move(*stream), options);
  if (auto ec = co_await lane->greet(std::move(mine))) co_return ec;
  auto theirs = co_await lane->greeting();
  if (!theirs) co_return theirs.error();
  if (auto ec = compare(options, *theirs)) co_return ec;
  co_return greeted{std::move(lane), std::move(*theirs)};
}

// Connections that break are replaced, under new numbers: what a broken one still carries must not pass for theirs. A
// peer that refuses, because it has not noticed, or is not reached is asked again, ever later.
awaitable<void> redial(std::shared_ptr<link_session> session, link_url url, link_options options, link_hello mine) {
  constexpr duration first_pause = std::chrono::milliseconds(50), last_pause = std::chrono::seconds(5);
  auto& time = clock::of(session->executor().get());
  while (co_await session->lane_lost()) {
    for (duration pause = first_pause;; pause = std::min(2 * pause, last_pause)) {
      mine.lane = std::max(mine.lane, session->next_number());
      if (mine.lane >= most_lane_numbers) co_return;
      auto next = co_await with_deadline(dial(url, options, mine), options.greeting);
      const auto number = mine.lane++;  // the peer may have taken it
      if (next && session->add(next->first, number)) {
        next->first->run(session);
        break;
      }
      if (!co_await time.async_wait_for(pause, as_result)) co_return;
    }
  }
}

awaitable<result<peer_link>> connect(window_table windows, std::string text, link_options options) {
  auto url = parse_link_url(text);
  if (!url) co_return url.error();
  if (auto ec = check(options, *url, *windows.registry())) co_return ec;
  options = fitting(std::move(options), *url, *windows.registry());
  auto& links = windows.registry()->links;
  auto mine = hello_of(options);
  mine.session = seed_source::of(windows.get_executor()).next();
  if (url->scheme == link_scheme::nccl) {
    auto meeting = co_await make_nccl_meeting(windows.registry());
    if (!meeting) co_return meeting.error();
    mine.meeting = std::move(*meeting);
  }
  constexpr auto made = link_roster::end::made;
  links.introduce(mine, made);
  const std::shared_ptr<void> greeting(&links, [&, windows, id = mine.session](void*) { links.forget(id, made); });
  auto first = co_await with_deadline(dial(*url, options, mine), options.greeting);
  if (!first) co_return first.error();
  auto& [lane, theirs] = *first;
  if (auto ec = co_await end_all(links.dead(theirs))) co_return ec;
  auto session = std::make_shared<link_session>(windows.registry(), options, theirs, lane->address());
  if (!mine.meeting.empty()) {
    auto carrier = make_nccl_carrier(*windows.registry(), mine.meeting, 0, options);
    if (!carrier) co_return carrier.error();
    session->carry_by(std::move(*carrier));
  }
  session->add(lane, 0);
  lane->run(session);
  links.established(made, session, theirs);
  peer_link link(session);
  if (!mine.meeting.empty())
    if (auto ec = co_await session->meet()) co_return ec;
  mine.sessions.clear();
  for (mine.lane = 1; mine.lane < std::min({mine.lanes, theirs.lanes, most_lanes}); ++mine.lane) {
    auto next = co_await with_deadline(dial(*url, options, mine), options.greeting);
    if (!next) co_return next.error();
    if (!session->add(next->first, mine.lane)) co_return session->error() ? session->error() : errc::unavailable;
    next->first->run(session);
  }
  if (mine.lane > 1) session->attend(redial(session, *url, options, mine));
  co_return link;
}

}  // namespace

class link_acceptor : public std::enable_shared_from_this<link_acceptor> {
 public:
  link_acceptor(window_table windows, listener door, link_url url, link_options options)
      : windows_(std::move(windows)),
        door_(std::move(door)),
        url_(std::move(url)),
        options_(std::move(options)),
        accepted_(windows_.get_executor(), most_unaccepted),
        tasks_(windows_.get_executor(), most_greetings + 1) {}

  void start() { tasks_.spawn(accept(weak_from_this())); }
  void close() {
    closed_ = true;
    door_.close();
    tasks_.cancel();
    accepted_.close();
    while (accepted_.try_receive()) continue;  // links that nobody took
  }
  asio::any_io_executor get_executor() const { return windows_.get_executor(); }
  std::string url() const { return url_.to_string(); }
  void set_namespace(const namespace_id& ns) { options_.ns = ns; }
  awaitable<result<peer_link>> next() {
    const auto self = shared_from_this();
    co_return co_await accepted_.async_receive(as_result);
  }

 private:
  static awaitable<void> accept(std::weak_ptr<link_acceptor> weak);
  static awaitable<void> greet(std::shared_ptr<link_acceptor> self, std::shared_ptr<link_lane> lane);
  awaitable<error_code> answer(std::shared_ptr<link_lane> lane);
  static awaitable<void> meet(std::shared_ptr<link_acceptor> self, std::shared_ptr<link_session> session,
                              peer_link link);
  error_code admit(const link_hello& theirs);

  window_table windows_;
  listener door_;
  link_url url_;
  link_options options_;
  channel<peer_link> accepted_;
  background tasks_;
  bool closed_ = false;
};

awaitable<void> link_acceptor::accept(std::weak_ptr<link_acceptor> weak) {
  for (;;) {
    const auto self = weak.lock();
    if (!self) co_return;
    auto stream = co_await self->door_.async_accept(as_result);
    if (!stream) {
      // Out of descriptors, say: those that wait are still there in a moment.
      auto moment = clock::of(self->get_executor()).async_wait_for(std::chrono::milliseconds(10), as_result);
      if (self->closed_ || !co_await std::move(moment)) co_return;
      continue;
    }
    auto lane = std::make_shared<link_lane>(std::move(*stream), self->options_);
    self->tasks_.spawn(greet(self, lane));  // refused: one too many
  }
}

awaitable<void> link_acceptor::greet(std::shared_ptr<link_acceptor> self, std::shared_ptr<link_lane> lane) {
  auto done = co_await with_deadline(self->answer(lane), self->options_.greeting);
  if (done) co_return;
  (void)co_await with_deadline(lane->refuse(done.error()), self->options_.greeting);
  lane->close();
}

// Longer than a greeting may take. Nobody has the link yet; the peer's end, or the listener's, ends this.
awaitable<void> link_acceptor::meet(std::shared_ptr<link_acceptor> self, std::shared_ptr<link_session> session,
                                    peer_link link) {
  if (co_await session->meet()) co_return;
  (void)self->accepted_.try_send(std::move(link));
}

error_code link_acceptor::admit(const link_hello& theirs) {
  if (auto ec = compare(options_, theirs)) return ec;
  if ((url_.scheme == link_scheme::nccl) == theirs.meeting.empty()) return errc::unsupported;
  if (theirs.lanes > most_lanes) return errc::invalid_argument;
  if (theirs.lane == 0)
    return accepted_.size() == accepted_.capacity() ? make_error_code(errc::unavailable) : error_code();
  const auto link = windows_.registry()->links.accepted(theirs.session, theirs.worker);
  if (!link) return errc::not_found;
  return link->lanes() < options_.connections ? error_code() : make_error_code(errc::unavailable);
}

awaitable<error_code> link_acceptor::answer(std::shared_ptr<link_lane> lane) {
  auto theirs = co_await lane->greeting();
  if (!theirs) co_return theirs.error();
  if (auto ec = admit(*theirs)) co_return ec;
  auto& links = windows_.registry()->links;
  const auto options = fitting(options_, url_, *windows_.registry());  // staging may have come since it listens
  auto mine = hello_of(options);
  mine.session = theirs->session;
  if (theirs->lane != 0) {
    if (auto ec = co_await lane->greet(mine)) co_return ec;
    const auto session = links.accepted(theirs->session, theirs->worker);
    if (!session) co_return errc::not_found;
    if (!session->add(lane, theirs->lane)) co_return session->error() ? session->error() : errc::closed;
    lane->run(session);
    co_return error_code();
  }
  if (auto ec = co_await end_all(links.dead(*theirs))) co_return ec;
  if (links.has_accepted(mine.session)) co_return errc::already_exists;
  constexpr auto accepted = link_roster::end::accepted;
  links.introduce(mine, accepted);
  const std::shared_ptr<void> greeting(&links,
                                       [&, w = windows_, id = mine.session](void*) { links.forget(id, accepted); });
  std::unique_ptr<link_carrier> carrier;
  if (!theirs->meeting.empty()) {
    auto made = make_nccl_carrier(*windows_.registry(), theirs->meeting, 1, options);
    if (!made) co_return made.error();
    carrier = std::move(*made);
  }
  if (auto ec = co_await lane->greet(mine)) co_return ec;
  auto session = std::make_shared<link_session>(windows_.registry(), options, *theirs, lane->address());
  const bool carries = carrier != nullptr;
  session->carry_by(std::move(carrier));
  session->add(lane, 0);
  lane->run(session);
  links.established(accepted, session, *theirs);
  peer_link link(session);
  const auto self = shared_from_this();
  const bool taken = carries ? tasks_.spawn(meet(self, session, std::move(link))) : accepted_.try_send(std::move(link));
  if (!taken) co_return errc::unavailable;
  co_return error_code();
}

void connect_link(window_table windows, std::string url, link_options options, link_handler h) {
  const auto ex = windows.get_executor();
  run_as_operation(ex, connect(std::move(windows), std::move(url), std::move(options)), std::move(h));
}

void accept_link(const std::shared_ptr<link_acceptor>& from, link_handler h) {
  // The body may begin later than this returns.
  auto body = [](std::shared_ptr<link_acceptor> a) -> awaitable<result<peer_link>> { co_return co_await a->next(); };
  run_as_operation(from->get_executor(), body(from), std::move(h));
}

}  // namespace detail

link_listener& link_listener::operator=(link_listener&& other) noexcept {
  if (this != &other) {
    close();
    acceptor_ = std::move(other.acceptor_);
  }
  return *this;
}

result<link_listener> link_listener::listen(window_table windows, std::string_view text, link_options options) {
  auto url = detail::parse_link_url(text);
  if (!url) return url.error();
  if (auto ec = detail::check(options, *url, *windows.registry())) return ec;
  if (url->scheme == detail::link_scheme::nccl)
    if (auto ec = detail::check_nccl(*windows.registry())) return ec;
  auto door = detail::listen_streams(windows.get_executor(), *url);
  if (!door) return door.error();
  if (url->scheme == detail::link_scheme::mpi)
    url->rank = door->local_endpoint().port;
  else if (url->scheme != detail::link_scheme::shm)
    url->at.port = door->local_endpoint().port;
  options = detail::fitting(std::move(options), *url, *windows.registry());
  auto acceptor = std::make_shared<detail::link_acceptor>(std::move(windows), std::move(*door), std::move(*url),
                                                          std::move(options));
  acceptor->start();
  return link_listener(std::move(acceptor));
}

asio::any_io_executor link_listener::get_executor() const { return acceptor_->get_executor(); }
std::string link_listener::url() const { return acceptor_->url(); }
void link_listener::set_namespace(const namespace_id& ns) { acceptor_->set_namespace(ns); }
void link_listener::close() {
  if (acceptor_) acceptor_->close();
}

}  // namespace cokv

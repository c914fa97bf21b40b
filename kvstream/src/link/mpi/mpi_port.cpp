#include "link/mpi/mpi_port.hpp"

#include <algorithm>

#include "cokv/kvstream/frame.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "link/mpi/mpi_channel.hpp"
#include "link/mpi/mpi_network.hpp"

namespace cokv::detail {
namespace {

constexpr auto spin = std::chrono::microseconds(50);
constexpr auto shortest_pause = std::chrono::microseconds(50);
constexpr auto longest_pause = std::chrono::milliseconds(1);
// Whoever runs the loop with cokv::run() polls for so long after something came; afterwards the timer does.
constexpr auto keen = std::chrono::milliseconds(1);
constexpr auto linger = std::chrono::seconds(2);  // for what a closed stream's peer has still to take or to say
constexpr std::size_t most_callers = 64;
constexpr int control_tag = 0;

}  // namespace

result<mpi_port*> mpi_port::of(const asio::any_io_executor& ex) {
  if (ex.target<sim_context::executor_type>()) return errc::unsupported;  // there are no other ranks in virtual time
  auto& port = asio::use_service<mpi_port>(asio::query(ex, asio::execution::context));
  if (!port.process_) {
    auto process = mpi_process::acquire();
    if (!process) return process.error();
    // It lives as long as the context: no work.
    const asio::any_io_executor own =
        asio::prefer(ex, asio::execution::outstanding_work.untracked, asio::execution::blocking.possibly);
    port.process_ = *process;
    port.requests_.emplace(**process);
    port.executor_ = prepared_executor(own);
    port.time_ = &clock::of(own);
    port.progress_ = &progress::of(own);
    port.progress_->add(port);
    port.pause_ = shortest_pause;
  }
  if (port.error_) return port.error_;
  return &port;
}

std::shared_ptr<mpi_channel> mpi_port::add(int rank) {
  auto channel = std::make_shared<mpi_channel>(*this, rank, process_->new_tag());
  channels_.push_back(channel);
  return channel;
}

std::shared_ptr<mpi_channel> mpi_port::call(int rank) {
  auto channel = add(rank);
  touched();
  return channel;
}

error_code mpi_port::open_door() {
  if (door_) return errc::in_use;
  door_ = true;
  touched();
  return {};
}

void mpi_port::close_door() {
  if (!door_) return;
  door_ = false;
  accepting_.complete_all(asio::error::operation_aborted);
  for (const auto& c : std::exchange(callers_, {}))
    tell(c.rank, {.kind = mpi_note::what::refused, .about = c.tag, .tag = to_wire(errc::unavailable)});
}

void mpi_port::accept(mpi_accept& op) {
  if (!door_ || error_) return op.complete(error_ ? error_ : asio::error::operation_aborted, {});
  accepting_.push_back(op);
  take_callers();
}

void mpi_port::take_callers() {
  while (!callers_.empty() && !accepting_.empty()) {
    const auto c = callers_.front();
    callers_.pop_front();
    auto channel = add(c.rank);
    channel->answered(static_cast<int>(c.tag));
    tell(c.rank, {.kind = mpi_note::what::taken, .about = c.tag, .tag = channel->tag()});
    accepting_.front().complete({}, mpi_stream_of(std::move(channel)));
  }
}

void mpi_port::tell(int rank, mpi_note note) {
  auto owner = std::make_shared<mpi_note>(note);
  const auto* bytes = owner.get();
  requests_->send(bytes, sizeof note, rank, control_tag, [owner](error_code) {});
}

std::shared_ptr<mpi_channel> mpi_port::find(int rank, std::uint32_t tag) const {
  const auto found = std::ranges::find_if(
      channels_, [&](const auto& c) { return c->calling() && c->rank() == rank && c->tag() == tag; });
  return found == channels_.end() ? nullptr : *found;
}

void mpi_port::heard(const mpi_note& note, int rank) {
  if (note.magic != mpi_note().magic) return;
  using what = mpi_note::what;
  if (note.kind == what::call) {
    const auto refused = note.version != mpi_note().version                  ? errc::unsupported
                         : !door_ || callers_.size() == most_callers         ? errc::unavailable
                         : note.tag == 0 || note.tag > process_->most_tags() ? errc::protocol
                                                                             : errc();
    if (refused != errc()) return tell(rank, {.kind = what::refused, .about = note.tag, .tag = to_wire(refused)});
    callers_.push_back({rank, note.tag});
    return take_callers();
  }
  const auto channel = find(rank, note.about);
  if (!channel) return;
  if (note.kind == what::taken && note.tag != 0 && note.tag <= process_->most_tags())
    channel->answered(static_cast<int>(note.tag));
  else
    channel->refused(note.kind == what::refused ? from_wire(note.tag) : make_error_code(errc::protocol));
}

std::size_t mpi_port::hear() {
  std::size_t n = 0;
  for (;; ++n) {
    mpi_requests::arrival a;
    if (auto ec = requests_->probe(MPI_ANY_SOURCE, control_tag, a)) fail(ec);
    if (!a.message) break;
    auto note = std::make_shared<mpi_note>();
    note->magic = 0;
    requests_->receive(a, {asio::buffer(note.get(), sizeof *note)}, [this, note, rank = a.rank](error_code ec) {
      if (!ec) heard(*note, rank);
    });
  }
  return n;
}

std::size_t mpi_port::poll() {
  if (!process_ || error_ || polling_) return 0;
  polling_ = true;
  std::size_t n = 0;
  if (!process_->ready()) {
    if (auto ec = process_->get_ready()) fail(ec);
    n += process_->ready();
  }
  if (process_->ready()) {
    error_code failed;
    n += requests_->poll(failed);
    if (failed) fail(failed);
    n += hear();
    pumped_ = channels_;
    for (const auto& c : pumped_) {
      if (c->uncalled()) tell(c->rank(), {.tag = c->tag()}), c->called();
      n += c->pump();
    }
    pumped_.clear();
    std::erase_if(channels_, [](const auto& c) { return c->over(); });
  }
  polling_ = false;
  const auto now = time_->now();
  if (n > 0) {
    found_ = now;
    pause_ = shortest_pause;
    keen_ = true;
  } else if (keen_ && now - found_ >= keen) {
    keen_ = false;
    keep_polling();
  }
  return n;
}

result<MPI_Comm> mpi_port::split(int colour, int& rank, int& size) {
  auto comm = process_->split(colour);
  if (!comm) return comm;
  if (auto ec = process_->check(process_->api().Comm_rank(*comm, &rank))) return ec;
  if (auto ec = process_->check(process_->api().Comm_size(*comm, &size))) return ec;
  return comm;
}

void mpi_port::sum(std::span<float> numbers, MPI_Comm over, mpi_requests::outcome done) {
  if (!process_ || error_) return done(error_ ? error_ : make_error_code(errc::closed));
  ++sums_;
  requests_->sum(numbers, over, [this, done = std::move(done)](error_code ec) mutable {
    --sums_;
    done(ec);
  });
  if (sums_ > 0) touched();
}

void mpi_port::fail(error_code ec) {
  if (!error_) error_ = ec;
  for (const auto& c : std::vector(channels_)) c->fail(error_);
  accepting_.complete_all(error_);
}

bool mpi_port::needed() const {
  if (!process_ || error_) return false;
  if (door_ || sums_ > 0) return true;
  const auto now = time_->now();
  return std::ranges::any_of(channels_,
                             [&](const auto& c) { return c->waited_for() || now - c->closed_at() < linger; });
}

bool mpi_port::lingers() const {
  return std::ranges::any_of(channels_, [](const auto& c) { return !c->open() && !c->over(); });
}

bool mpi_port::awaited() const { return keen_ && needed(); }

void mpi_port::arm() {
  if (needed()) sleep(pause_);
}

void mpi_port::touched() {
  found_ = time_->now();
  pause_ = shortest_pause;
  keen_ = true;
  keep_polling();
}

void mpi_port::keep_polling() {
  if (posted_ || !needed()) return;
  if (progress_->polled()) {  // by run(), which arms before it sleeps, but ends where nobody waits for anything
    if (!keen_ || lingers()) sleep(keen_ ? longest_pause : pause_);
    return;
  }
  if (time_->now() - found_ >= spin) return sleep(pause_);
  posted_ = true;
  executor_.post([this] {
    posted_ = false;
    poll();
    keep_polling();
  });
}

void mpi_port::sleep(duration pause) {
  const auto when = time_->now() + pause;
  if (asleep_ && wakes_at_ <= when) return;
  if (std::exchange(asleep_, true)) waking_.emit(asio::cancellation_type::terminal);
  wakes_at_ = when;
  time_->async_wait_until(when, asio::bind_cancellation_slot(waking_.slot(), [this, turn = ++turn_](error_code ec) {
                            if (turn != turn_ || ec) return;  // a shorter one came after it
                            asleep_ = false;
                            if (poll() == 0)
                              pause_ =
                                  sums_ > 0 ? duration(shortest_pause) : std::min<duration>(2 * pause_, longest_pause);
                            keep_polling();
                          }));
}

// Peers hear of the end, and memory that MPI writes is left alone from here on: a message that has begun to come comes
// to its end, unless its sender never does. What a peer doesn't take is left to it after a moment.
void mpi_port::shutdown() {
  if (!process_) return;
  close_door();
  for (const auto& c : channels_) c->leave();
  const auto until = time_->now() + std::chrono::seconds(1);
  error_code failed;
  while (!error_ && !failed && !requests_->empty() && (requests_->writing() || time_->now() < until)) {
    requests_->poll(failed);
    for (const auto& c : channels_) c->pump();
  }
  for (const auto& c : channels_) {
    c->fail(errc::closed);
    process_->bury(c);
  }
  requests_->bury(*process_);
  error_ = errc::closed;
  std::exchange(process_, nullptr)->release();
}

}  // namespace cokv::detail

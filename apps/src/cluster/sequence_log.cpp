#include "cluster/sequence_log.hpp"

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::cluster {

struct sequence_log::state {
  explicit state(const asio::any_io_executor& ex)
      : time(clock::of(ex)), more(ex, 1), changed(ex, 1), unread_since(time.now()) {}

  clock& time;
  std::vector<generated> pieces;
  std::optional<ending> over;
  bool forgotten = false, gone = false;
  std::uint64_t reader = 0, readers = 0;  // the one that reads, 0 for none; how many there were
  channel<char> more;                     // for the reader
  channel<char> changed;                  // for until_unread()
  time_point unread_since;

  void tell() {
    (void)more.try_send('x');
    (void)changed.try_send('x');
  }
};

sequence_log::sequence_log(asio::any_io_executor ex) : state_(std::make_shared<state>(ex)) {}

sequence_log::~sequence_log() {
  state_->gone = true;
  state_->tell();
}

void sequence_log::add(generated g) {
  if (state_->over) return;
  state_->pieces.push_back(std::move(g));
  (void)state_->more.try_send('x');
}

void sequence_log::end(ending e) {
  if (state_->over) return;
  state_->over = std::move(e);
  state_->tell();
}

void sequence_log::forget() {
  state_->forgotten = true;
  state_->tell();
}

std::uint32_t sequence_log::pieces() const noexcept { return static_cast<std::uint32_t>(state_->pieces.size()); }
bool sequence_log::ended() const noexcept { return state_->over.has_value(); }
bool sequence_log::failed() const noexcept { return state_->over && state_->over->code; }
bool sequence_log::forgotten() const noexcept { return state_->forgotten; }
bool sequence_log::being_read() const noexcept { return state_->reader != 0; }

sequence_log::reader sequence_log::read(std::uint32_t from) { return reader(state_, from); }

sequence_log::reader::reader(std::shared_ptr<state> of, std::uint32_t from)
    : of_(std::move(of)), number_(++of_->readers), at_(from) {
  of_->reader = number_;
  of_->tell();  // the one before learns of it
}

sequence_log::reader::~reader() {
  if (!of_ || of_->reader != number_) return;
  of_->reader = 0;
  of_->unread_since = of_->time.now();
  of_->tell();
}

awaitable<result<line>> sequence_log::reader::next() {
  const auto s = of_;
  for (;;) {
    if (s->reader != number_ || s->gone) {
      s->tell();  // it may have taken what was meant for the newer one
      co_return make_error_code(errc::closed);
    }
    if (told_) co_return error_code(asio::error::eof);
    if (at_ < s->pieces.size()) {
      line out = piece{at_, s->pieces[at_]};
      ++at_;
      co_return out;
    }
    if (s->over) {
      told_ = true;
      co_return line(*s->over);
    }
    if (auto woken = co_await s->more.async_receive(as_result); !woken) co_return woken.error();
  }
}

awaitable<void> sequence_log::until_unread(duration grace, until what) {
  const auto s = state_;
  while (!s->forgotten && !s->gone && !(what == until::unread_or_ended && s->over)) {
    if (s->reader != 0) {
      co_await s->changed.async_receive();
      continue;
    }
    const auto left = s->unread_since + grace - s->time.now();
    if (left <= duration(0)) co_return;
    auto woken = co_await with_deadline(s->changed.async_receive(), left);
    if (!woken && woken.error() != errc::deadline) throw boost::system::system_error(woken.error());
  }
}

}  // namespace cokv::cluster

#include "store/http_places.hpp"

#include <algorithm>
#include <charconv>

#include "cokv/kvstream/block_places.hpp"
#include "cokv/runtime/readable_memory.hpp"
#include "store/http_remote.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_verified = 1 << 20;

// What views hold: the connection that keeps the blocks where they are, and the mapping.
struct borrowed {
  byte_stream::descriptor connection;
  buffer memory;
};

class places_reader final : public block_reader {
 public:
  places_reader(asio::any_io_executor ex, std::shared_ptr<http_remote> from, stream_begin about, block_places where,
                std::shared_ptr<borrowed> held)
      : block_reader(std::move(ex)),
        from_(std::move(from)),
        about_(std::move(about)),
        where_(std::move(where)),
        held_(std::move(held)),
        good_(where_.blocks()) {}

  std::size_t found() const noexcept override { return where_.blocks(); }
  bool views_at_once() const noexcept override { return true; }
  result<std::size_t> read_now(std::uint32_t layer, const std::vector<buffer>& into) override {
    if (auto ec = check_buffers(about_.layout, about_.keys.size(), found(), layer, into)) return ec;
    if (layer < next_) return errc::invalid_argument;
    each(layer, [&](std::size_t i, std::span<std::byte> segment) { return copy(layer, i, into[i], segment); });
    return good_;
  }
  result<std::vector<segment_view>> view_now(std::uint32_t layer) override {
    if (layer >= about_.layout.layers()) return errc::out_of_range;
    if (layer < next_) return errc::invalid_argument;
    if (known_.empty()) look_up();
    std::vector<segment_view> views;
    views.reserve(good_);
    each(layer, [&](std::size_t i, std::span<std::byte> segment) {
      if (!sound(layer, i, segment)) return false;
      views.push_back({buffer::adopt(segment.data(), segment.size(), memory_kind::host, held_), {}, where_.lives[i]});
      if (sealed()) views.back().digest = where_.at(layer, i).digest;
      return true;
    });
    return views;
  }

 private:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    finish(std::move(handler), get_executor(), read_now(layer, into));
  }

  bool sealed() const { return about_.digest != digest_algorithm::none; }

  // The good blocks' segments, as long as `take` finds them right.
  template <class F>
  void each(std::uint32_t layer, F take) {
    next_ = layer + 1;
    const auto bytes = about_.layout.segments[layer];
    auto* const base = held_->memory.data();
    std::size_t i = 0;
    while (i < good_ && take(i, std::span(base + where_.at(layer, i).offset, bytes))) ++i;
    from_->counters.read_segments += i;
    from_->counters.read_bytes += i * bytes;
    if (i == good_) return;
    ++from_->counters.digest_failures;
    good_ = i;
  }

  bool copy(std::uint32_t layer, std::size_t i, const buffer& into, std::span<const std::byte> segment) const {
    if (sealed()) return copy_digest(into.bytes(), segment) == where_.at(layer, i).digest;
    copy_bytes(into.bytes(), segment);
    return true;
  }

  // What was looked at once stays as it is: nobody writes where a block lies that is lent, or was sealed and not yet given up.
  bool sound(std::uint32_t layer, std::size_t i, std::span<const std::byte> segment) {
    if (!sealed() || layer < known_[i]) return true;
    if (digest_of(segment) != where_.at(layer, i).digest) return false;
    if (layer != known_[i]) return true;  // one before was skipped
    ++known_[i];
    if (ours()) from_->lent->verify(where_.at(0, i).offset, where_.lives[i], known_[i]);
    return true;
  }

  // It is still the memory that the others are of.
  bool ours() const { return from_->lent->memory().data() == held_->memory.data(); }

  void look_up() {
    known_.resize(found());
    for (std::size_t i = 0; ours() && i < found(); ++i)
      known_[i] = from_->lent->verified(where_.at(0, i).offset, where_.lives[i]);
  }

  std::shared_ptr<http_remote> from_;
  stream_begin about_;
  block_places where_;
  std::shared_ptr<borrowed> held_;
  std::size_t good_;
  std::vector<std::uint32_t> known_;  // layers of each block, from the first, that need not be looked at
  std::uint32_t next_ = 0;
};

// Asks for the memory itself.
awaitable<error_code> attach(lent_memory& lent) {
  const auto client = lent.client();  // another may take its place meanwhile
  auto asked = co_await client->start({.method = "GET", .target = "/v1/memory"});
  if (!asked) co_return asked.error();
  auto body = co_await asked->lease->read_body(asked->head, 1 << 12);
  if (!body) co_return body.error();
  if (asked->head.status != 200) co_return error_of(asked->head.status);
  const auto id = number_in(*body, "memory"), bytes = number_in(*body, "bytes");
  auto file = asked->lease->take_attached();
  if (!id || !bytes || !file) co_return errc::protocol;
  if (asked->head.keep_alive) asked->lease.keep();
  co_return lent.map(*id, *bytes, std::move(file));
}

struct answered {
  std::string bytes;
  byte_stream::descriptor connection;
};

awaitable<result<answered>> ask(lent_memory& lent, const stream_begin& about) {
  const auto begin = stream_writer(about).begin();
  const auto client = lent.client();
  auto asked = co_await client->start({.method = "POST",
                                       .target = kv_target(about.ns, ":read?by=reference"),
                                       .fields = stream_type,
                                       .body = {reinterpret_cast<const char*>(begin.data()), begin.size()}});
  if (!asked) co_return asked.error();
  const auto most = block_places::encoded_bytes(about.layout.layers(), about.keys.size());
  auto body = co_await asked->lease->read_body(asked->head, std::max<std::size_t>(most, 1 << 12));
  if (!body) co_return body.error();
  if (asked->head.status != 200) {
    if (asked->head.keep_alive) asked->lease.keep();
    co_return asked->head.status == 409 ? make_error_code(errc::unsupported) : error_of(asked->head.status);
  }
  answered out{std::move(*body), asked->lease->detach()};
  if (!out.connection) co_return errc::protocol;
  co_return out;
}

awaitable<result<std::unique_ptr<block_reader>>> open(std::shared_ptr<http_remote> remote, stream_begin about) {
  auto& lent = *remote->lent;
  for (int left = 2; left != 0; --left) {
    if (lent.memory().empty())
      if (auto ec = co_await attach(lent)) co_return ec;
    const auto memory = lent.memory();
    const auto id = lent.id();
    auto answer = co_await ask(lent, about);
    if (!answer) co_return answer.error();
    const auto bytes = std::as_bytes(std::span(answer->bytes));
    const auto of = block_places::memory_of(bytes);
    if (!of) co_return of.error();
    if (*of != id) {  // the server is another by now
      lent.unmap();
      continue;
    }
    auto where = block_places::decode(bytes, about, memory.size());
    if (!where) co_return where.error();
    remote->counters.hits += where->blocks();
    remote->counters.misses += about.keys.size() - where->blocks();
    lent.used();
    auto held = std::make_shared<borrowed>(borrowed{std::move(answer->connection), memory});
    const auto ex = remote->client->get_executor();
    co_return std::make_unique<places_reader>(ex, std::move(remote), std::move(about), std::move(*where),
                                              std::move(held));
  }
  co_return errc::unavailable;
}

}  // namespace

void lent_memory::offered(std::string_view field) {
  std::uint64_t id = 0;
  const auto [end, ec] = std::from_chars(field.data(), field.data() + field.size(), id);
  const auto rest = field.substr(static_cast<std::size_t>(end - field.data()));
  if (ec != std::errc() || id == 0 || !rest.starts_with(" /") || id == expected_) return;
  const auto path = std::string(rest.substr(1));
  if (make_ && path != path_) {
    // What is under way through the other comes to its own end.
    std::erase_if(others_, [](const auto& c) { return c.expired(); });
    if (client_) others_.push_back(client_);
    client_ = make_(path);
  }
  path_ = path;
  expected_ = id;
  refused_ = false;
  takes_again_ = {};
  if (id_ != id) unmap();
}

bool lent_memory::takes() const { return client_ && clock::of(client_->get_executor()).now() >= takes_again_; }

void lent_memory::refuse_writes(duration how_long) {
  const auto now = clock::of(client_->get_executor()).now();
  takes_again_ = how_long < time_point::max() - now ? now + how_long : time_point::max();
}

error_code lent_memory::map(std::uint64_t id, std::uint64_t bytes, byte_stream::descriptor file) {
  if (id == 0) return errc::protocol;
  // Somebody else answers there: a server that took the place, or one in another container.
  if (expected_ != 0 && id != expected_) return errc::stale_reference;
  auto memory = readable_memory::map(std::move(file));
  if (!memory) return memory.error();
  if (memory->size() < bytes) return errc::protocol;
  if (id != id_) verified_.clear();
  id_ = id;
  memory_ = std::move(*memory);
  return {};
}

void lent_memory::unmap() {
  memory_ = {};
  if (waiting_) stop_waiting_.emit(asio::cancellation_type::terminal);
}

void lent_memory::used() {
  const auto& limit = client_->options().keep_alive;
  used_ = clock::of(client_->get_executor()).now();
  if (!waiting_) wait(used_ + limit);
}

void lent_memory::wait(time_point until) {
  waiting_ = true;
  const auto ex = client_->get_executor();
  const auto woke = [weak = weak_from_this()](error_code) {
    const auto self = weak.lock();
    if (!self) return;
    self->waiting_ = false;
    if (self->memory_.empty()) return;
    const auto until = self->used_ + self->client_->options().keep_alive;
    if (until <= clock::of(self->client_->get_executor()).now())
      self->memory_ = {};
    else
      self->wait(until);
  };
  clock::of(ex).async_wait_until(until,
                                 asio::bind_executor(ex, asio::bind_cancellation_slot(stop_waiting_.slot(), woke)));
}

void lent_memory::close() {
  if (client_) client_->close();
  for (const auto& other : others_)
    if (const auto client = other.lock()) client->close();
  unmap();
}

std::uint32_t lent_memory::verified(std::uint64_t offset, std::uint64_t life) const {
  const auto there = verified_.find(offset);
  return life != 0 && there != verified_.end() && there->second.life == life ? there->second.layers : 0;
}

void lent_memory::verify(std::uint64_t offset, std::uint64_t life, std::uint32_t layers) {
  if (life == 0) return;
  if (verified_.size() >= most_verified) verified_.clear();
  verified_[offset] = {life, layers};
}

awaitable<result<std::unique_ptr<block_reader>>> open_places_reader(std::shared_ptr<http_remote> remote,
                                                                    stream_begin about) {
  co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
  if (auto ec = refused(about, remote->max_blocks)) co_return ec;
  const auto asked = remote->lent->client();
  const auto meant = remote->lent->expected();
  auto reader = co_await open(remote, std::move(about));
  auto& counters = remote->counters;
  if (reader) {
    ++counters.lent_reads;
    co_return reader;
  }
  const auto ec = reader.error();
  if (ec == asio::error::operation_aborted) co_return ec;
  ++counters.sent_reads;
  // It says nothing of the one that was offered meanwhile.
  if (remote->lent->client() != asked || remote->lent->expected() != meant) co_return ec;
  // Not for us, or no such thing there: it isn't asked again. Blocks elsewhere than in memory, and a bound that is
  // reached, are other things the next time.
  if (ec == errc::permission_denied || ec == errc::not_found || ec == errc::stale_reference ||
      ec == errc::invalid_argument || ec == errc::protocol)
    remote->lent->refuse();
  // A server that is gone keeps no memory through us.
  if (ec != errc::unsupported && ec != errc::unavailable) remote->lent->unmap();
  co_return ec;
}

}  // namespace cokv::detail

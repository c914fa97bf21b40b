#include "http/exchange.hpp"

#include <boost/beast/http/rfc7230.hpp>
#include <charconv>
#include <ctime>
#include <limits>
#include <stdexcept>
#include <tuple>

namespace cokv::http {
namespace {

constexpr std::uint64_t skippable = 64 << 10;
constexpr duration unhurried = std::chrono::milliseconds(50);  // a read that may let some bytes come together first
constexpr duration look_again = std::chrono::seconds(1);       // whether others wait by now

asio::const_buffer as_buffer(std::string_view s) { return {s.data(), s.size()}; }

std::string_view date_text(wall_time now) {
  thread_local std::time_t of = -1;
  thread_local char text[32];
  thread_local std::size_t size = 0;
  const std::time_t t = std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  if (std::exchange(of, t) != t) {
    std::tm parts{};
    ::gmtime_r(&t, &parts);
    size = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  }
  return {text, size};
}

}  // namespace

exchange::exchange(wire& w, const limits& limit, parser& p, request_head& head, const pressure& others,
                   bool may_keep_alive)
    : wire_(w),
      limits_(limit),
      others_(others),
      parser_(p),
      head_(head),
      body_limit_(limit.body_bytes),
      keep_alive_(may_keep_alive && p.keep_alive()) {
  if (!p.is_header_done()) return;  // only to be refused
  if (auto n = p.content_length()) length_ = *n;
  if (p.is_done()) {
    length_ = 0;
    body_done_ = true;
  }
}

// ---- waiting for the client

// A body that trickles makes progress for ever: beside a byte now and then it needs a rate.
duration exchange::patience(const pace& body, duration idle) const {
  const auto at_rate = std::chrono::seconds(body.bytes / std::max<std::uint64_t>(1, limits_.least_rate));
  const auto stall = others_.place_wanted ? std::min(limits_.stall, limits_.contended_stall) : limits_.stall;
  duration left = std::min<duration>(stall - idle, stall + at_rate - body.waited - idle);
  if (others_wait_ && others_wait_()) {
    const double share = turn_bytes_ == 0 ? 1 : std::min(1.0, double(turn_.bytes) / double(turn_bytes_));
    const auto due = limits_.contended_stall +
                     duration(static_cast<duration::rep>(share * static_cast<double>(limits_.contended_turn.count())));
    left = std::min<duration>({left, limits_.contended_stall - idle, due - turn_.waited - idle});
  }
  return std::min<duration>(left, look_again);
}

// One read or write, begun anew until it moved something or patience is at its end.
template <class Once>
awaitable<result<std::size_t>> exchange::patiently(pace& body, Once once) {
  auto& time = clock::of(wire_.stream.get_executor());
  const auto start = time.now();
  result<std::size_t> n = make_error_code(errc::deadline);
  while (!n && n.error() == errc::deadline) {
    const auto left = patience(body, time.now() - start);
    if (left <= duration(0)) break;
    n = co_await once(left);
  }
  for (auto* p : {&body, &turn_}) {
    p->waited += time.now() - start;
    if (n) p->bytes += *n;
  }
  co_return n;
}

void exchange::contend(std::function<bool()> others_wait, std::uint64_t turn_bytes) {
  others_wait_ = std::move(others_wait);
  next_turn(turn_bytes);
}

void exchange::next_turn(std::uint64_t turn_bytes) {
  turn_bytes_ = turn_bytes;
  turn_ = {};
}

void exchange::moved(std::uint64_t bytes) {
  in_.bytes += bytes;
  turn_.bytes += bytes;
}

// ---- the request body

awaitable<error_code> exchange::continue_if_expected() {
  if (std::exchange(reading_, true)) co_return error_code();
  const auto expect = parser_.get()[field::expect];
  if (wire_.ahead.size() != 0 || head_.version < 11 || !beast::iequals(expect, "100-continue")) co_return error_code();
  const std::array buffers{as_buffer("HTTP/1.1 100 Continue\r\n\r\n")};
  co_return co_await put(buffers);
}

awaitable<error_code> exchange::still_at_it() {
  if (head_.version < 11) co_return error_code();
  const std::array buffers{as_buffer("HTTP/1.1 102 Processing\r\n\r\n")};
  co_return co_await put(buffers);
}

awaitable<result<std::size_t>> exchange::read_some(asio::mutable_buffer into) {
  co_return co_await read_some(std::span(&into, 1));
}

awaitable<result<std::size_t>> exchange::read_some(std::span<const asio::mutable_buffer> into) {
  if (body_error_) co_return body_error_;
  if (body_done_ || into.empty() || into.front().size() == 0) co_return std::size_t(0);
  body_error_ = co_await continue_if_expected();
  if (body_error_) co_return body_error_;
  auto n = length_ ? co_await read_counted(into) : co_await read_chunked(into.front());
  if (!n) {
    body_error_ = n.error();
    co_return n;
  }
  received_ += *n;
  if (received_ > body_limit_) {
    body_error_ = errc::too_large;
    co_return body_error_;
  }
  if (length_ && received_ == *length_) end_body();
  co_return n;
}

awaitable<result<std::size_t>> exchange::read_counted(std::span<const asio::mutable_buffer> into) {
  std::array<asio::mutable_buffer, byte_stream::mutable_buffers::limit> part;
  std::size_t count = 0, bytes = 0;
  for (const auto& place : into) {
    if (count == part.size() || bytes == *length_ - received_) break;
    part[count] = asio::buffer(place, static_cast<std::size_t>(*length_ - received_ - bytes));
    bytes += part[count++].size();
  }
  const auto places = std::span<const asio::mutable_buffer>(part).first(count);
  if (wire_.ahead.size() == 0 && bytes < 4096) {  // small pieces: one system call for many
    if (auto n = co_await patiently(in_, [this](duration d) { return wire_.read_ahead(d); }); !n) co_return n;
  }
  if (wire_.ahead.size() != 0) {
    const std::size_t n = asio::buffer_copy(places, wire_.ahead.data());
    wire_.ahead.consume(n);
    co_return n;
  }
  co_return co_await patiently(in_, [this, places](duration d) {
    if (d >= unhurried) wire_.stream.expect(*length_ - received_);
    return wire_.read_some(places, d);
  });
}

awaitable<result<std::size_t>> exchange::read_chunked(asio::mutable_buffer into) {
  for (;;) {
    auto& body = parser_.get().body();
    body.data = into.data();
    body.size = into.size();
    error_code ec = beast::http::error::need_more;
    chunks_shown_ = chunks_shown_ || may_be_parsed(wire_.ahead);
    if (chunks_shown_ && wire_.ahead.size() != 0) {
      const std::size_t used = parser_.put(wire_.ahead.data(), ec);
      wire_.ahead.consume(used);
      around_chunks_ += used - (into.size() - body.size);
      if (ec && ec != beast::http::error::need_more && ec != beast::http::error::need_buffer)
        co_return make_error_code(errc::protocol);
    }
    const std::size_t got = into.size() - body.size;
    // Sizes, extensions and trailers count for no body's limit: they may be as much as small chunks need.
    if (around_chunks_ > skippable + 8 * (received_ + got)) co_return make_error_code(errc::too_large);
    if (parser_.is_done()) end_body();
    if (got != 0 || body_done_) co_return got;
    if (ec == beast::http::error::need_more || wire_.ahead.size() == 0)
      if (auto n = co_await patiently(in_, [this](duration d) { return wire_.read_ahead(d); }); !n) co_return n;
  }
}

bool exchange::stay() {
  keep_alive_ = false;
  left_ = std::make_shared<bool>(false);
  wire_.kept.reset();
  wire_.drop_descriptors();
  wire_.keep_descriptors(false);
  return wire_.ahead.size() == 0;
}

awaitable<void> exchange::until_left() {
  auto& time = clock::of(wire_.stream.get_executor());
  const bool throwing = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  // That somebody waits for a place ends no lease.
  for (error_code cancelled; !cancelled && (!others_.last_answers || others_.place_wanted);)
    std::tie(cancelled) = co_await time.async_wait_for(look_again, asio::as_tuple(asio::deferred));
  co_await asio::this_coro::throw_if_cancelled(throwing);
}

void exchange::end_body() {
  body_done_ = true;
  wire_.keep_descriptors(!left_);  // they are the next request's
  if (on_body_done_) std::exchange(on_body_done_, nullptr)();
}

awaitable<error_code> exchange::read_exactly(asio::mutable_buffer into) {
  while (into.size() != 0) {
    auto n = co_await read_some(into);
    if (!n) co_return n.error();
    if (*n == 0) co_return body_error_ = errc::protocol;
    into += *n;
  }
  co_return error_code();
}

awaitable<result<std::string>> exchange::read_all() {
  std::string out;
  for (;;) {
    const std::size_t had = out.size();
    // What is announced is believed only as fast as it arrives.
    std::size_t more = std::clamp<std::size_t>(had, 4096, 1 << 20);
    if (length_) more = std::min<std::uint64_t>(more, *length_ - had);
    if (more == 0) more = 1;
    out.resize(had + more);
    auto n = co_await read_some(asio::buffer(out.data() + had, more));
    if (!n) co_return n.error();
    out.resize(had + *n);
    if (body_done_) co_return out;
  }
}

awaitable<void> exchange::skip_body() {
  if (body_done_ || body_error_ || !keep_alive_ || !finished()) co_return;
  std::array<char, 4096> sink;
  while (!body_done_ && received_ <= skippable) {
    auto n = co_await read_some(asio::buffer(sink));
    if (!n) co_return;
  }
}

// ---- the response

awaitable<error_code> exchange::put(std::span<const asio::const_buffer> from) {
  out_ = {};  // each write for itself: a handler may have taken its time between them
  writing_ = true;
  std::vector<asio::const_buffer> left(from.begin(), from.end());
  for (std::size_t first = 0;;) {
    while (first < left.size() && left[first].size() == 0) ++first;
    if (first == left.size()) break;
    const auto rest = std::span(left).subspan(first);
    auto n = wire_.write_now(rest);
    if (n) {
      out_.bytes += *n;
      turn_.bytes += *n;
    } else {
      n = co_await patiently(out_, [this, rest](duration d) { return wire_.write_some(rest, d); });
    }
    if (!n) co_return n.error();
    torn_ = true;
    for (std::size_t done = *n; done != 0; first += left[first].size() == 0) {
      const auto part = std::min(done, left[first].size());
      left[first] += part;
      done -= part;
    }
  }
  writing_ = torn_ = false;
  co_return error_code();
}

// After half of an interim answer another would be read as its other half.
bool exchange::can_answer() {
  if (!torn_) return true;
  response_ = phase::body;
  keep_alive_ = false;
  write_error_ = errc::closed;
  return false;
}

void exchange::set(field name, std::string value) {
  set(std::string_view(beast::http::to_string(name)), std::move(value));
}

void exchange::set(std::string_view name, std::string value) {
  if (value.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos)
    throw std::logic_error("a header value may not hold a line break");
  fields_.append(name).append(": ").append(value).append("\r\n");
}

std::string exchange::head_text(status code, std::string_view type, std::optional<std::uint64_t> length) {
  if (others_.last_answers) keep_alive_ = false;
  const auto reason = beast::http::obsolete_reason(code);
  std::string out = "HTTP/1.1 " + std::to_string(static_cast<unsigned>(code)) + ' ';
  out.append(reason.data(), reason.size()).append("\r\n");
  out.append("Date: ").append(date_text(clock::of(wire_.stream.get_executor()).wall_now())).append("\r\n");
  if (!type.empty()) out.append("Content-Type: ").append(type).append("\r\n");
  if (length)
    out.append("Content-Length: ").append(std::to_string(*length)).append("\r\n");
  else if (chunked_)
    out.append("Transfer-Encoding: chunked\r\n");
  // Said outright in both cases: HTTP/1.0 clients need the one, all others the other.
  out.append(keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n");
  out.append(fields_).append("\r\n");
  return out;
}

awaitable<error_code> exchange::respond(status code, std::string_view type, std::string_view body) {
  if (started()) throw std::logic_error("a request is answered once");
  if (!can_answer()) co_return write_error_;
  // A small rest of the body is skipped; for a large one it is cheaper to connect again.
  if (!body_done_ && (!length_ || *length_ - received_ > skippable || body_error_)) keep_alive_ = false;
  response_ = phase::body;
  code_ = code;
  const bool bodiless = code == status::no_content || code == status::not_modified;
  const std::string head =
      head_text(code, bodiless ? "" : type, bodiless ? std::nullopt : std::optional<std::uint64_t>(body.size()));
  if (bodiless || head_.method == verb::head) body = {};
  const std::array buffers{as_buffer(head), as_buffer(body)};
  write_error_ = co_await put(buffers);
  if (!write_error_) {
    sent_ += body.size();
    response_ = phase::done;
  }
  co_return write_error_;
}

awaitable<error_code> exchange::refuse(problem p) {
  const std::string body = error_body(p);
  co_return co_await respond(p.code, "application/json", body);
}

void exchange::start(status code, std::string_view type, std::optional<std::uint64_t> length) {
  if (started()) throw std::logic_error("a request is answered once");
  if (!can_answer()) return;
  if (!body_done_ && (!length_ || *length_ - received_ > skippable || body_error_)) keep_alive_ = false;
  response_ = phase::body;
  code_ = code;
  promised_ = length;
  chunked_ = !length && head_.version >= 11;
  if (!length && !chunked_) keep_alive_ = false;  // HTTP/1.0: the end of the connection is the end of the body
  head_out_ = head_text(code, type, length);
}

void exchange::withdraw() {
  if (response_ != phase::body || head_out_.empty()) return;
  response_ = phase::none;
  head_out_.clear();
  fields_.clear();
  promised_.reset();
  chunked_ = false;
  sent_ = 0;
}

awaitable<error_code> exchange::write(std::string_view bytes) {
  const std::array buffers{as_buffer(bytes)};
  co_return co_await write(buffers);
}

awaitable<error_code> exchange::write(std::span<const asio::const_buffer> buffers) {
  if (response_ != phase::body) throw std::logic_error("write() comes after start() and before finish()");
  if (write_error_) co_return write_error_;
  std::size_t total = 0;
  for (const auto& b : buffers) total += b.size();
  if (total == 0 && head_out_.empty()) co_return error_code();
  if (promised_ && sent_ + total > *promised_) throw std::logic_error("more than the length that start() announced");
  sent_ += total;
  if (head_.method == verb::head) co_return error_code();
  const std::string head = std::exchange(head_out_, {});
  if (!chunked_ && head.empty()) co_return write_error_ = co_await put(buffers);
  std::vector<asio::const_buffer> all;
  all.reserve(buffers.size() + 3);
  if (!head.empty()) all.push_back(as_buffer(head));
  if (!chunked_ || total == 0) {
    all.insert(all.end(), buffers.begin(), buffers.end());
    co_return write_error_ = co_await put(all);
  }
  char size[20];
  auto end = std::to_chars(size, size + 16, total, 16).ptr;
  *end++ = '\r';
  *end++ = '\n';
  all.emplace_back(size, static_cast<std::size_t>(end - size));
  all.insert(all.end(), buffers.begin(), buffers.end());
  all.push_back(as_buffer("\r\n"));
  co_return write_error_ = co_await put(all);
}

awaitable<error_code> exchange::finish() {
  if (response_ != phase::body) throw std::logic_error("finish() comes once, after start()");
  if (write_error_) co_return write_error_;
  if (promised_ && sent_ != *promised_ && head_.method != verb::head)
    throw std::logic_error("less than the length that start() announced");
  const std::string_view end = chunked_ && head_.method != verb::head ? "0\r\n\r\n" : "";
  if (!head_out_.empty() || !end.empty()) {
    const std::string head = std::exchange(head_out_, {});
    const std::array buffers{as_buffer(head), as_buffer(end)};
    write_error_ = co_await put(buffers);
  }
  if (!write_error_) response_ = phase::done;
  co_return write_error_;
}

awaitable<void> exchange::say_last_words() {
  if (response_ != phase::body || writing_ || write_error_ || promised_ || last_words_.empty()) co_return;
  keep_alive_ = false;
  if (!co_await write(std::exchange(last_words_, {}))) co_await finish();
}

}  // namespace cokv::http

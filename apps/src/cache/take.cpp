// A :write by reference: its body says where the segments lie in its writer's memory, and they are copied from there.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cache/passed_memory.hpp"
#include "cache/service.hpp"
#include "cache/transfer.hpp"
#include "cokv/kvstream/block_places.hpp"
#include "cokv/kvstream/digest.hpp"

namespace cokv::cache {
namespace {

using http::exchange;
using http::status;

constexpr std::size_t turn_bytes = 512 << 10;   // copied, then others have their turn
constexpr std::size_t cached_bytes = 64 << 10;  // copied, then digested from the processor's cache

// The body, and what of it was read and not used.
class said {
 public:
  explicit said(exchange& x) : x_(x) {}

  // As many as `want` are there, or more. errc::protocol: the body ends before.
  awaitable<error_code> have(std::size_t want) {
    while (bytes().size() < want) {
      in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(std::exchange(used_, 0)));
      const auto had = in_.size();
      in_.resize(had + std::max<std::size_t>(16 << 10, want - bytes().size()));
      auto n = co_await x_.read_some(asio::buffer(in_.data() + had, in_.size() - had));
      in_.resize(had + (n ? *n : 0));
      if (!n) co_return n.error();
      if (*n == 0) co_return errc::protocol;
    }
    co_return error_code();
  }
  std::span<const std::byte> bytes() const { return std::span<const std::byte>(in_).subspan(used_); }
  void use(std::size_t n) { used_ += n; }

 private:
  exchange& x_;
  std::vector<std::byte> in_;
  std::size_t used_ = 0;
};

awaitable<void> others() { co_await asio::post(co_await asio::this_coro::executor, asio::deferred); }

// The writer may change its memory at any time: what is digested is what arrived here, where nobody else writes, not what
// lies there. Of a key that is there already nothing arrives (`into` is empty), and nothing but the writer's mistake is
// to be found.
std::span<const std::byte> copy(std::span<std::byte> into, std::span<const std::byte> from) {
  if (into.empty()) return from;
  std::memcpy(into.data(), from.data(), from.size());
  return into.first(from.size());
}

// The digest of what arrived.
awaitable<std::uint64_t> copy_in_turns(std::span<std::byte> into, std::span<const std::byte> from) {
  digest_state digest;
  for (std::size_t at = 0; at < from.size(); at += cached_bytes) {
    if (at != 0 && at % turn_bytes == 0) co_await others();
    const auto n = std::min(cached_bytes, from.size() - at);
    digest.update(copy(into.empty() ? into : into.subspan(at, n), from.subspan(at, n)));
  }
  co_return digest.value();
}

std::shared_ptr<passed_memory> passed_on(exchange& x, const std::shared_ptr<mapped_memory>& all) {
  if (!x.kept()) x.kept() = std::make_shared<passed_memory>(all);
  return std::static_pointer_cast<passed_memory>(x.kept());
}

http::problem problem_of_memory(error_code ec) {
  if (ec == errc::stale_reference)
    return {status::conflict, "no such memory came over this connection", "memory", "stale_reference"};
  if (ec == errc::too_large)
    return {status::payload_too_large, "more memory than is mapped here", "memory", "too_large"};
  if (ec != errc::invalid_argument)
    return {status::service_unavailable, "the memory can't be mapped now: " + ec.message(), {}, "unavailable"};
  return {status::bad_request, "memory is a memfd that is sealed against shrinking and growing", "memory",
          "invalid_argument"};
}

}  // namespace

awaitable<service::upload> service::take(exchange& x, namespace_id ns, write_options how) {
  upload out;
  out.refused = not_lent();
  const auto meant = x.request().fields["Cokv-Memory"];
  if (options_.lending && !meant.empty() && meant != std::to_string(options_.lending->id()))
    out.refused =
        http::problem{status::conflict, "the memory that is lent here is another", "Cokv-Memory", "stale_reference"};
  else if (options_.lending && x.carries_descriptors())
    out.refused = co_await store_places(x, out.about, ns, how);
  note(out.refused);
  co_return out;
}

awaitable<std::optional<http::problem>> service::store_places(exchange& x, stream_begin& about, namespace_id ns,
                                                              write_options how) {
  const auto failed = [](error_code ec) { return problem_of(ec, transfer::storing); };
  const auto damaged = [&] {
    ++all_->damaged;
    return failed(errc::digest_mismatch);
  };
  said body(x);
  stream_parser parser(options_.frames);
  for (bool begun = false; !begun;) {
    if (auto ec = co_await body.have(1)) co_return failed(ec);
    auto rest = body.bytes();
    const auto event = parser.next(rest);
    body.use(body.bytes().size() - rest.size());
    begun = event == stream_event::begun;
    if (event == stream_event::failed) {
      if (!parser.from_peer() && parser.error() == errc::digest_mismatch) ++all_->damaged;
      co_return problem_of_stream(parser, transfer::storing);
    }
    if (!begun && event != stream_event::more) co_return failed(errc::protocol);
  }
  about = parser.about();
  if (auto wrong = check_begin(about, ns, nullptr)) co_return wrong;
  if (about.digest == digest_algorithm::none) co_return failed(errc::unsupported);
  const auto blocks = about.keys.size();
  auto room = co_await hold(x, layer_memory::needed(about.layout, blocks));
  if (!room) co_return room.error();
  auto opened = co_await store_.async_open_write(ns, about.layout, about.keys, how, as_result);
  if (!opened) co_return co_await quota_or(failed(opened.error()), how.tenant, about);
  const auto writer = std::move(*opened);
  const auto passed = passed_on(x, options_.lending->mapped());

  stream_begin one = about;  // as which a layer's places are understood
  one.layout.segments.resize(1);
  std::size_t copied = 0;  // in this turn
  layer_memory aside;
  for (std::uint32_t layer = 0; layer < about.layout.layers(); ++layer) {
    const auto bytes = one.layout.segments[0] = about.layout.segments[layer];
    auto into = writer->place(layer);
    const bool in_place = !into.empty();
    if (!in_place) into = aside.of(about.layout, blocks, layer);
    std::vector<std::uint64_t> digests;
    x.next_turn(bytes * blocks);
    while (digests.size() < blocks) {
      if (auto ec = co_await body.have(block_places::head_bytes)) co_return failed(ec);
      const auto size = block_places::announced_bytes(body.bytes(), 1, blocks - digests.size());
      if (!size) co_return failed(size.error());
      if (auto ec = co_await body.have(*size)) co_return failed(ec);
      const auto places = body.bytes().first(*size);
      const auto number = block_places::memory_of(places);
      if (!number && number.error() == errc::digest_mismatch) co_return damaged();
      if (!number) co_return failed(number.error());
      const auto memory = passed->find(*number, [&] { return x.take_attached(); });
      if (!memory) co_return problem_of_memory(memory.error());
      const auto where = block_places::decode(places, one, (*memory)->size());
      if (!where) co_return failed(where.error());
      if (where->blocks() == 0) co_return failed(errc::protocol);
      body.use(*size);
      for (const auto& place : where->places) {
        const auto from = std::span<const std::byte>((*memory)->bytes()).subspan(place.offset, bytes);
        const auto to = into[digests.size()].bytes();
        const auto digest = bytes <= cached_bytes ? digest_of(copy(to, from)) : co_await copy_in_turns(to, from);
        if (digest != place.digest) co_return damaged();
        digests.push_back(digest);
        if ((copied += bytes) < turn_bytes) continue;
        copied = 0;
        co_await others();
      }
      options_.lending->took(where->blocks(), where->blocks() * bytes);
      x.moved(where->blocks() * bytes);
      if (digests.size() == blocks) {
        auto stored = in_place ? co_await writer->async_placed(layer, std::move(digests), as_result)
                               : co_await writer->async_write(layer, into, as_result);
        if (!stored) co_return failed(stored.error());
        digests.resize(blocks);
      }
      if (auto ec = co_await x.still_at_it()) co_return failed(ec);
    }
  }

  // Places of nothing: all of it is to be visible.
  if (auto ec = co_await body.have(block_places::encoded_bytes(0, 0))) co_return failed(ec);
  one.layout.segments.clear();
  const auto last = block_places::encoded_bytes(0, 0);
  const auto end = block_places::decode(body.bytes().first(last), one, 0);
  if (!end && end.error() == errc::digest_mismatch) co_return damaged();
  if (!end || body.bytes().size() != last) co_return failed(errc::protocol);
  std::array<std::byte, 1> beyond;
  auto n = co_await x.read_some(asio::buffer(beyond));
  if (!n) co_return failed(n.error());
  if (*n != 0) co_return failed(errc::protocol);
  auto visible = co_await writer->async_commit(as_result);
  if (!visible) co_return failed(visible.error());
  co_return std::nullopt;
}

}  // namespace cokv::cache

#include "http/wire.hpp"

#include <algorithm>

namespace cokv::http {

awaitable<result<std::size_t>> wire::read_ahead(duration limit) {
  const std::size_t room = std::min<std::size_t>(ahead.max_size() - ahead.size(), 16 << 10);
  if (room == 0) co_return make_error_code(errc::too_large);
  const asio::mutable_buffer into = ahead.prepare(room);
  auto n = co_await read_some({&into, 1}, limit);
  if (n) ahead.commit(*n);
  co_return n;
}

awaitable<result<std::size_t>> wire::read_some(std::span<const asio::mutable_buffer> into, duration limit) {
  auto n = co_await within(clock::of(stream.get_executor()), limit, stream.async_read_some(into));
  if (!stream.carries_descriptors() || collect()) co_return n;
  stream.close();
  co_return make_error_code(asio::error::connection_aborted);
}

byte_stream::descriptor wire::take_attached() {
  if (attached_.empty()) return {};
  auto d = std::move(attached_.front());
  attached_.pop_front();
  return d;
}

bool wire::collect() {
  while (auto d = stream.take_attached())
    if (keeps_) attached_.push_back(std::move(d));
  return attached_.size() <= most_attached;
}

awaitable<result<std::size_t>> wire::write_some(std::span<const asio::const_buffer> from, duration limit) {
  struct sequence {  // a span is not a buffer sequence; a copy of it would allocate
    using value_type = asio::const_buffer;
    using const_iterator = const asio::const_buffer*;
    const asio::const_buffer *first, *last;
    const_iterator begin() const { return first; }
    const_iterator end() const { return last; }
  };
  co_return co_await within(clock::of(stream.get_executor()), limit,
                            stream.async_write_some(sequence{from.data(), from.data() + from.size()}));
}

}  // namespace cokv::http

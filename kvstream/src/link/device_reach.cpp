#include "link/device_reach.hpp"

#include <algorithm>
#include <cstring>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "transfer/paired.hpp"

namespace cokv::detail {
namespace {

// Host memory among the pieces is copied here and now: it may be memory that the device doesn't know.
result<event> copy(stream& on, const std::vector<buffer>& pieces, const buffer& chunk, bool into_chunk) {
  std::vector<copy_op> batch;
  std::size_t at = 0;
  for (const auto& piece : pieces) {
    const auto part = chunk.slice(at, piece.size());
    at += piece.size();
    const auto& to = into_chunk ? part : piece;
    const auto& from = into_chunk ? piece : part;
    if (piece.host_accessible())
      std::memcpy(to.data(), from.data(), piece.size());
    else
      batch.push_back({to, from});
  }
  if (auto ec = on.copy_batch(batch, into_chunk ? "fetch for a link" : "bring from a link")) return ec;
  return on.record();
}

}  // namespace

bool on_host(const std::vector<buffer>& pieces) { return std::ranges::all_of(pieces, &buffer::host_accessible); }

result<std::unique_ptr<device_reach>> device_reach::make(device& d, const device_staging& how, memory_kind chunks) {
  if (how.chunk < 4096 || how.count == 0) return errc::invalid_argument;
  const auto in_flight =
      2 * how.count;  // a copy has a chunk, which may be back before the stream has counted it as done
  auto bring = d.make_stream({.name = "links in", .max_in_flight = in_flight});
  if (!bring) return bring.error();
  auto fetch = d.make_stream({.name = "links out", .max_in_flight = in_flight});
  if (!fetch) return fetch.error();
  auto in = staging_pool::make(d, how.chunk, how.count, chunks);
  if (!in) return in.error();
  auto out = staging_pool::make(d, how.chunk, how.count, chunks);
  if (!out) return out.error();
  return std::unique_ptr<device_reach>(
      new device_reach(d, std::move(*bring), std::move(*fetch), std::move(*in), std::move(*out)));
}

result<event> device_reach::bring(const buffer& chunk, const std::vector<buffer>& to) {
  return copy(bring_, to, chunk, false);
}

result<event> device_reach::fetch(const std::vector<buffer>& from, const buffer& chunk) {
  return copy(fetch_, from, chunk, true);
}

// The stream is made when it is needed first, since most links never do, and anew when it has failed.
result<event> device_reach::exchange(const std::vector<buffer>& to, const std::vector<buffer>& from) {
  if (!exchange_ || exchange_.status()) {
    auto made = on_.make_stream({.name = "links across processes"});
    if (!made) return made.error();
    exchange_ = std::move(*made);
  }
  std::vector<copy_op> batch;
  pair_up(batch, to, from);
  if (auto ec = exchange_.copy_batch(batch, "copy across processes")) return ec;
  return exchange_.record();
}

}  // namespace cokv::detail

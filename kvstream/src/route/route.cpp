#include "cokv/kvstream/route.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <string>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/error.hpp"
#include "route/leg_finder.hpp"

namespace cokv {
namespace {

using detail::leg_finder;
using detail::meeting;

void check(const topology& from, const topology& to, const geometry& model, request_batch batch) {
  from.check(model.layers());
  to.check(model.layers());
  if (batch.sequences == 0 || batch.sequences > route::max_sequences)
    throw config_error("route: a batch of " + std::to_string(batch.sequences) + " sequences, not 1 to " +
                       std::to_string(route::max_sequences));
  if (std::numeric_limits<std::uint32_t>::max() - batch.sequences < std::max(batch.from_first, batch.to_first))
    throw config_error("route: a sequence's number is beyond 32 bits");
}

std::uint64_t digest_text(const topology& from, const topology& to, const geometry& model, request_batch batch) {
  auto text = "cokv.route.1\nfrom:" + from.text() + "\nto:" + to.text() + "\ngeometry:" + model.canonical() +
              "\nbatch:" + std::to_string(batch.sequences) + "," + std::to_string(batch.from_first) + "," +
              std::to_string(batch.to_first) + "\n";
  return digest_of(std::as_bytes(std::span(text)));
}

// In order of layers. Where two stages meet, whichever ends first gives way to its next.
std::vector<meeting> meetings(const topology& from, const topology& to, std::uint32_t layers) {
  std::vector<meeting> out;
  for (std::uint32_t p = 0, q = 0, at = 0; at < layers;) {
    auto from_end = from.layers(layers, p).end(), to_end = to.layers(layers, q).end();
    auto end = static_cast<std::uint32_t>(std::min(from_end, to_end));
    out.push_back({p, q, {at, end - at}});
    at = end;
    p += from_end == end;
    q += to_end == end;
  }
  return out;
}

// How many sequences from this one on are in the same microbatch.
std::uint32_t rest_of_microbatch(const topology& t, std::uint32_t sequence, std::uint32_t at_most) {
  if (t.microbatch() == 0) return at_most;
  return std::min(at_most, t.microbatch() - t.slot(sequence).slot);
}

}  // namespace

std::uint64_t token_bytes(const geometry& model, const leg& of) {
  std::uint64_t bytes = 0;
  for (auto layer = of.layers.first; layer < of.layers.end(); ++layer) {
    auto& planes = model.group(layer).planes;
    for (std::size_t i = 0; i < planes.size(); ++i) {
      if (of.planes == (planes[i].per_head ? plane_set::shared : plane_set::per_head)) continue;
      bytes += model.row_bytes(layer, i) * (planes[i].per_head ? of.heads.count : 1);
    }
  }
  return bytes;
}

route::route(const topology& from, const topology& to, const geometry& model, request_batch batch) {
  check(from, to, model, batch);
  digest_ = digest_text(from, to, model, batch);
  leg_finder finder(from, to, model);
  struct known {
    meeting where;
    bool depends_on_sequence;
    std::map<std::uint32_t, std::vector<leg>> by_sequences;
  };
  std::vector<known> all;
  for (auto& m : meetings(from, to, model.layers())) all.push_back({m, finder.depends_on_sequence(m), {}});

  for (std::uint32_t s = 0, count = 0; s < batch.sequences; s += count) {
    count = rest_of_microbatch(from, batch.from_first + s, batch.sequences - s);
    count = rest_of_microbatch(to, batch.to_first + s, count);
    for (auto& k : all) {
      auto sequences = k.depends_on_sequence ? count : 1;
      auto [found, is_new] = k.by_sequences.try_emplace(sequences);
      if (is_new) found->second = finder.find(k.where, sequences);
      if (legs_.size() + found->second.size() > max_legs)
        throw config_error("route: more than " + std::to_string(max_legs) + " legs");
      for (auto l : found->second) {
        if (!k.depends_on_sequence) l.sequences.count = count;
        l.sequences.first += s;
        l.from.first = from.slot(batch.from_first + l.sequences.first);
        l.to.first = to.slot(batch.to_first + l.sequences.first);
        legs_.push_back(l);
      }
    }
  }
}

std::vector<std::uint32_t> route::sent_by(worker from) const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < legs_.size(); ++i)
    if (legs_[i].from.worker == from) out.push_back(i);
  return out;
}

std::vector<std::uint32_t> route::received_by(worker to) const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < legs_.size(); ++i)
    if (legs_[i].to.worker == to) out.push_back(i);
  return out;
}

}  // namespace cokv

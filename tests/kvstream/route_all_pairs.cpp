// Routes carried out on real bytes: every worker has a small memory of its own shape, legs are copies between them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cokv/kvstream/placement.hpp"
#include "cokv/kvstream/route.hpp"

using namespace cokv;

namespace {

constexpr std::uint32_t tokens = 2;

geometry attention(std::uint32_t layers, std::uint32_t heads) {
  return geometry::attention(layers, heads, 2, dtype::bf16, tokens);
}

std::vector<geometry> geometries() {
  std::vector<plane> kv{{"k", dtype::bf16, true, 1}, {"v", dtype::bf16, true, 2}};
  std::vector<plane> latent{{"c", dtype::bf16, false, 3}, {"r", dtype::u8, false, 2}};
  std::vector<plane> scaled{
      {"s", dtype::f32, true, 1}, {"k", dtype::fp8_e4m3, true, 4}, {"v", dtype::fp8_e4m3, true, 4}};
  std::vector<plane> shared_scale{{"k", dtype::fp8_e5m2, true, 2}, {"s", dtype::u8, false, 3}};
  return {attention(11, 8),
          attention(8, 6),
          attention(9, 2),
          attention(8, 1),
          attention(13, 5),
          geometry(tokens, {{0, 10, 0, latent}}),
          geometry(tokens, {{0, 3, 8, kv}, {3, 2, 0, latent}, {5, 4, 2, scaled}}),
          geometry(tokens, {{0, 9, 6, shared_scale}}),
          geometry(tokens, {{0, 1, 0, latent},
                            {1, 1, 3, kv},
                            {2, 2, 0, latent},
                            {4, 1, 3, kv},
                            {5, 1, 3, shared_scale},
                            {6, 2, 4, shared_scale}})};
}

// What the model's KV is, byte by byte.
std::byte truth(std::uint32_t layer, std::size_t plane, std::uint32_t head, std::uint32_t sequence, std::uint64_t at) {
  std::uint64_t x = layer;
  for (std::uint64_t part : {std::uint64_t{plane}, std::uint64_t{head}, std::uint64_t{sequence}, at})
    x = (x ^ part) * 0x9e3779b97f4a7c15u + (x >> 29);
  return static_cast<std::byte>(x >> 56);
}

// A worker's memory, [layer][sequence][its segment].
struct memory {
  placement where;
  std::uint32_t sequences;
  std::vector<std::uint64_t> layer_at;
  std::vector<std::byte> bytes;

  memory(const topology& t, const geometry& model, worker w, std::uint32_t sequences)
      : where(t, model, w), sequences(sequences) {
    std::uint64_t end = 0;
    for (std::uint32_t layer = 0; layer < where.shape().layers(); ++layer) {
      layer_at.push_back(end);
      end += where.shape().segment_bytes(layer) * sequences;
    }
    bytes.resize(end);
  }

  std::uint64_t at(std::uint32_t layer, std::uint32_t sequence, std::uint32_t head, std::size_t plane) const {
    return layer_at[layer] + where.shape().segment_bytes(layer) * sequence +
           where.shape().plane_offset(layer, head, plane);
  }

  void fill(const geometry& model) {
    for (std::uint32_t local = 0; local < where.shape().layers(); ++local) {
      auto layer = where.global_layer(local);
      auto& planes = model.group(layer).planes;
      for (std::uint32_t s = 0; s < sequences; ++s)
        for (std::size_t p = 0; p < planes.size(); ++p)
          for (std::uint32_t h = 0; h < (planes[p].per_head ? where.heads(layer).count : 1); ++h)
            for (std::uint64_t i = 0; i < model.row_bytes(layer, p) * tokens; ++i)
              bytes[at(local, s, h, p) + i] =
                  truth(layer, p, planes[p].per_head ? where.heads(layer).first + h : 0, s, i);
    }
  }
};

std::vector<memory> all_workers(const topology& t, const geometry& model, std::uint32_t sequences) {
  std::vector<memory> out;
  for (std::uint32_t n = 0; n < t.workers(); ++n) out.emplace_back(t, model, t.at(n), sequences).fill(model);
  return out;
}

// Which sequence of the batch is in this slot, if the slot is one at all.
std::uint32_t sequence_in(const topology& t, batch_slot where, std::uint32_t first, std::uint32_t sequences) {
  auto size = t.microbatch();
  if (size > 0 && where.slot >= size) return sequences;
  return where.microbatch * size + where.slot - first;
}

// Copies a leg, straight from the definition of the layout. False when it reaches for what is not there.
bool carry(const leg& l, const memory& from, memory& to, std::vector<std::uint8_t>& written, std::uint32_t read,
           std::uint32_t write) {
  if (read >= from.sequences || write >= to.sequences) return false;
  auto &here = from.where.shape(), &there = to.where.shape();
  if (l.from.layers.end() > here.layers() || l.to.layers.end() > there.layers()) return false;
  for (std::uint32_t i = 0; i < l.layers.count; ++i) {
    auto a = l.from.layers.first + i, b = l.to.layers.first + i;
    auto& planes = here.group(a).planes;
    if (planes != there.group(b).planes) return false;
    for (std::size_t p = 0; p < planes.size(); ++p) {
      if (l.planes == (planes[p].per_head ? plane_set::shared : plane_set::per_head)) continue;
      if (planes[p].per_head && (l.from.heads.end() > here.kv_heads(a) || l.to.heads.end() > there.kv_heads(b)))
        return false;
      auto size = here.row_bytes(a, p) * tokens;
      for (std::uint32_t h = 0; h < (planes[p].per_head ? l.heads.count : 1); ++h) {
        auto into = to.at(b, write, l.to.heads.first + h, p);
        std::memcpy(&to.bytes[into], &from.bytes[from.at(a, read, l.from.heads.first + h, p)], size);
        for (std::uint64_t k = 0; k < size; ++k) ++written[into + k];
      }
    }
  }
  return true;
}

// The same through slices, as links do it: packed on one side and unpacked on the other, token by token.
bool carry_by_slices(const leg& l, const memory& from, memory& to, std::vector<std::uint8_t>& written,
                     std::uint32_t read, std::uint32_t write) {
  auto here = kv_layout::paged(from.where.shape(), from.sequences);
  auto there = kv_layout::paged(to.where.shape(), to.sequences);
  slice out(from.where.shape(), l.from.layers, {read}), in(to.where.shape(), l.to.layers, {write});
  out.heads(l.from.heads).planes(l.planes);
  in.heads(l.to.heads).planes(l.planes);
  std::vector<std::byte> packed;
  for (std::uint32_t token = 0; token < tokens; ++token) {
    packed.clear();
    out.tokens({token, 1}).for_each_extent(here, [&](extent e) {
      auto at = from.bytes.begin() + static_cast<std::ptrdiff_t>(e.offset);
      packed.insert(packed.end(), at, at + static_cast<std::ptrdiff_t>(e.size));
    });
    if (packed.size() != in.tokens({token, 1}).bytes()) return false;
    std::size_t taken = 0;
    in.for_each_extent(there, [&](extent e) {
      std::memcpy(&to.bytes[e.offset], &packed[taken], e.size);
      for (std::uint64_t k = 0; k < e.size; ++k) ++written[e.offset + k];
      taken += e.size;
    });
  }
  return true;
}

// Carries the whole route out. Empty when every worker has what it should, each byte written once and none besides.
std::string what_is_wrong(const route& way, const topology& from, const topology& to, const geometry& model,
                          request_batch batch, const std::vector<memory>& senders, const std::vector<memory>& expected,
                          decltype(carry)* move = carry) {
  auto receivers = expected;
  std::vector<std::vector<std::uint8_t>> written(receivers.size());
  std::uint64_t kept = 0, moved = 0;
  for (std::size_t n = 0; n < receivers.size(); ++n) {
    std::ranges::fill(receivers[n].bytes, std::byte{0xee});
    written[n].resize(receivers[n].bytes.size());
    kept += receivers[n].bytes.size();
  }
  for (auto& l : way.legs()) {
    if (l.from.layers.count != l.layers.count || l.to.layers.count != l.layers.count) return "layers of another number";
    if (l.from.heads.count != l.heads.count || l.to.heads.count != l.heads.count) return "heads of another number";
    moved += token_bytes(model, l) * tokens * l.sequences.count;
    auto n = to.number(l.to.worker);
    for (std::uint32_t i = 0; i < l.sequences.count; ++i) {
      auto read = l.from.first, write = l.to.first;
      read.slot += i, write.slot += i;
      auto a = sequence_in(from, read, batch.from_first, batch.sequences);
      auto b = sequence_in(to, write, batch.to_first, batch.sequences);
      if (a != l.sequences.first + i || b != a) return "a sequence in another slot";
      if (!move(l, senders[from.number(l.from.worker)], receivers[n], written[n], a, b)) return "beyond what is kept";
    }
  }
  for (std::size_t n = 0; n < receivers.size(); ++n) {
    if (!std::ranges::all_of(written[n], [](auto times) { return times == 1; })) return "not written once";
    if (receivers[n].bytes != expected[n].bytes) return "wrong bytes";
  }
  return moved == kept ? "" : "more moved than kept";
}

std::string name(const topology& from, const topology& to, const geometry& model) {
  return from.text() + " -> " + to.text() + " of " + model.canonical();
}

// What twins send, against what the header promises: less than a piece from their mean, and none idle if pieces of the
// same size are enough for all.
std::string balance(const route& way, const topology& from, const topology& to, const geometry& model) {
  struct share {
    std::map<std::uint32_t, std::uint64_t> by_rank;
    std::uint64_t sequences = 0;
  };
  // By microbatch on both sides, stage, number of heads, and head; 0 of 0 is what has none.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>, share> sent;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> batch_end;
  for (auto& l : way.legs()) {
    auto& end = batch_end[{l.from.first.microbatch, l.to.first.microbatch}];
    end = std::max(end, l.sequences.end());
  }
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> batch_size;
  std::uint64_t begin = 0;
  std::map<std::uint64_t, std::pair<std::uint32_t, std::uint32_t>> in_order;
  for (auto& [where, end] : batch_end) in_order[end] = where;
  for (auto& [end, where] : in_order) batch_size[where] = end - begin, begin = end;

  for (auto& l : way.legs())
    for (auto layer = l.layers.first; layer < l.layers.end(); ++layer) {
      auto& group = model.group(layer);
      for (std::size_t p = 0; p < group.planes.size(); ++p) {
        if (l.planes == (group.planes[p].per_head ? plane_set::shared : plane_set::per_head)) continue;
        auto heads = group.planes[p].per_head ? l.heads : index_range{0, 1};
        for (auto head = heads.first; head < heads.end(); ++head)
          sent[{l.from.first.microbatch, l.to.first.microbatch, l.from.worker.stage,
                group.planes[p].per_head ? group.kv_heads : 0, head}]
              .by_rank[l.from.worker.rank] += model.row_bytes(layer, p) * l.sequences.count;
      }
    }

  for (auto& [key, share] : sent) {
    auto [from_mb, to_mb, stage, of, head] = key;
    auto twins = of > 0 ? from.ranks(of, head) : index_range{0, from.degree()};
    auto receivers = of > 0 ? to.ranks(of, head).count : to.degree();
    std::uint64_t largest = 0, smallest = ~std::uint64_t{0}, layers = 0, all = 0;
    auto range = from.layers(model.layers(), stage);
    for (auto layer = range.first; layer < range.end(); ++layer) {
      auto& group = model.group(layer);
      std::uint64_t bytes = 0;
      for (std::size_t p = 0; p < group.planes.size(); ++p)
        if (group.planes[p].per_head ? group.kv_heads == of : of == 0) bytes += model.row_bytes(layer, p);
      if (bytes == 0) continue;
      ++layers;
      largest = std::max(largest, bytes), smallest = std::min(smallest, bytes);
    }
    auto sequences = batch_size[{from_mb, to_mb}];
    auto cut = layers * receivers < twins.count;
    auto piece = largest * (cut ? 1 : sequences);
    for (auto& [rank, bytes] : share.by_rank) {
      all += bytes;
      if (rank < twins.first || rank >= twins.end()) return "sent by one that does not keep it";
    }
    for (auto rank = twins.first; rank < twins.end(); ++rank) {
      auto scaled = share.by_rank[rank] * twins.count;
      if ((scaled > all ? scaled - all : all - scaled) >= piece * twins.count)
        return "a twin sends too much or too little";
      if (smallest == largest && layers * receivers * (cut ? sequences : 1) >= twins.count && scaled == 0)
        return "a twin is idle";
    }
  }
  return "";
}

// No two legs could have been one.
std::string merged(const route& way) {
  auto& legs = way.legs();
  for (std::size_t i = 0; i < legs.size(); ++i)
    for (std::size_t j = 0; j < legs.size(); ++j) {
      auto &a = legs[i], &b = legs[j];
      if (i == j || a.from.worker != b.from.worker || a.to.worker != b.to.worker) continue;
      if (a.from.first.microbatch != b.from.first.microbatch || a.to.first.microbatch != b.to.first.microbatch)
        continue;
      auto same_kind =
          a.planes == b.planes && a.heads == b.heads && a.from.heads == b.from.heads && a.to.heads == b.to.heads;
      if (same_kind && a.sequences == b.sequences && a.layers.end() == b.layers.first) return "adjacent layers";
      if (same_kind && a.layers == b.layers && a.sequences.end() == b.sequences.first) return "adjacent sequences";
      if (a.layers == b.layers && a.sequences == b.sequences) return "the same layers";
    }
  return "";
}

}  // namespace

TEST_CASE("route: every byte arrives once at the right place, for every pair of depths, degrees and batches") {
  struct split {
    request_batch batch;
    std::uint32_t from, to;  // sequences in a microbatch
  };
  for (auto& model : geometries())
    for (auto [batch, from_size, to_size] : {split{{1, 0, 0}, 0, 0}, split{{4, 0, 8}, 4, 1}, split{{5, 1, 4}, 2, 3},
                                             split{{3, 2, 0}, 0, 2}, split{{7, 0, 0}, 3, 5}}) {
      std::vector<std::pair<topology, topology>> sides;
      std::vector<std::vector<memory>> memories;
      for (std::uint32_t depth : {1, 2, 3, 4, 8})
        for (std::uint32_t degree : {1, 2, 4, 8}) {
          sides.emplace_back(topology(depth, degree, from_size), topology(depth, degree, to_size));
          memories.push_back(all_workers(sides.back().first, model, batch.sequences));
        }
      for (std::size_t i = 0; i < sides.size(); ++i)
        for (std::size_t j = 0; j < sides.size(); ++j) {
          auto &from = sides[i].first, &to = sides[j].second;
          route way(from, to, model, batch);
          auto wrong = what_is_wrong(way, from, to, model, batch, memories[i], memories[j]);
          REQUIRE_MESSAGE(wrong == "", wrong << ": " << name(from, to, model));
        }
    }
}

TEST_CASE("route: any stages, odd degrees, any batch: bytes arrive once, twins share the work, legs are merged") {
  std::mt19937 random(11);
  auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  auto models = geometries();
  for (int round = 0; round < 3000; ++round) {
    auto& model = models[below(static_cast<std::uint32_t>(models.size()))];
    auto any = [&] {
      auto depth = 1 + below(model.layers());
      std::vector<std::uint32_t> starts;
      if (below(2) == 0) {
        for (std::uint32_t layer = 1; layer < model.layers(); ++layer) starts.push_back(layer);
        std::shuffle(starts.begin(), starts.end(), random);
        starts.resize(depth - 1);
        starts.push_back(0);
        std::ranges::sort(starts);
      }
      return topology(depth, 1 + below(12), below(2) * below(6), std::move(starts));
    };
    auto from = any(), to = any();
    request_batch batch{1 + below(6), below(5), below(5)};
    route way(from, to, model, batch);
    auto wrong = what_is_wrong(way, from, to, model, batch, all_workers(from, model, batch.sequences),
                               all_workers(to, model, batch.sequences), round % 4 == 0 ? carry_by_slices : carry);
    if (wrong.empty()) wrong = balance(way, from, to, model);
    if (wrong.empty()) wrong = merged(way);
    REQUIRE_MESSAGE(wrong == "", wrong << ": " << name(from, to, model));
  }
}

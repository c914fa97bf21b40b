#include "stage/step_order.hpp"

#include <algorithm>

#include "cokv/kvstream/frame.hpp"
#include "cokv/runtime/error.hpp"
#include "stage/step_bytes.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint32_t order_magic = 0x4f766b63, outcome_magic = 0x41766b63;  // "ckvO", "ckvA"
constexpr std::uint32_t swap_magic = 0x53766b63, swapped_magic = 0x54766b63;   // "ckvS", "ckvT"
constexpr std::uint32_t version = 4;

void write(byte_writer& to, const sampling_state& s) {
  const auto& p = s.params;
  for (auto x : {p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty})
    to.real(x);
  to.number(p.top_k);
  to.number(p.seed);
  to.number(s.logprobs ? std::uint64_t{*s.logprobs} + 1 : std::uint64_t{0});
  to.number(static_cast<std::uint64_t>(s.first));
  to.number(static_cast<std::uint32_t>(p.logit_bias.size()));
  for (auto& b : p.logit_bias) {
    to.number(static_cast<std::uint32_t>(b.token));
    to.real(b.bias);
  }
  to.list(s.prompt);
  to.list(s.answer);
}

bool known(std::span<const token_id> tokens, std::uint32_t vocab) {
  return std::ranges::all_of(tokens, [&](token_id t) { return t >= 0 && static_cast<std::uint32_t>(t) < vocab; });
}

std::shared_ptr<sampling_state> read_state(byte_reader& from, const stage_sizes& sizes, std::uint32_t vocab) {
  auto out = std::make_shared<sampling_state>();
  auto& p = out->params;
  for (auto* x : {&p.temperature, &p.top_p, &p.min_p, &p.repetition_penalty, &p.presence_penalty, &p.frequency_penalty})
    *x = from.real();
  p.top_k = from.number<std::uint32_t>();
  p.seed = from.number<std::uint64_t>();
  const auto logprobs = from.number<std::uint64_t>();
  if (logprobs > vocab + std::uint64_t{1}) from.spoil();
  if (logprobs > 0) out->logprobs = static_cast<std::uint32_t>(logprobs - 1);
  out->first = from.number<std::uint64_t>();
  p.logit_bias.resize(from.count(vocab, 8));
  for (auto& b : p.logit_bias) {
    b.token = static_cast<token_id>(from.number<std::uint32_t>());
    b.bias = from.real();
    if (!known({&b.token, 1}, vocab)) from.spoil();
  }
  out->prompt = from.list<token_id>(sizes.max_sequence);
  out->answer = from.list<token_id>(sizes.max_sequence);
  if (check(p) || !known(out->prompt, vocab) || !known(out->answer, vocab) || out->first > sizes.max_sequence)
    from.spoil();
  return out;
}

batch_sequence read_sequence(byte_reader& from, const stage_sizes& sizes, std::uint32_t vocab) {
  batch_sequence s;
  s.start = from.number<std::uint32_t>();
  s.sample = from.flag();
  s.tokens = from.list<token_id>(sizes.max_batched_tokens);
  s.blocks = from.list<block_index>(sizes.max_sequence / sizes.block_tokens + 1);
  const auto end = std::uint64_t{s.start} + s.tokens.size();
  if (s.tokens.empty() || end > sizes.max_sequence || end > std::uint64_t{sizes.block_tokens} * s.blocks.size() ||
      !known(s.tokens, vocab) || std::ranges::any_of(s.blocks, [&](auto b) { return b >= sizes.kv_blocks; }))
    from.spoil();
  return s;
}

// That it computes with, each once.
std::size_t blocks_of(const step_order& o, const stage_sizes& sizes) {
  std::vector<block_index> all;
  for (const auto& s : o.sequences) {
    const auto n = (s.start + s.tokens.size() + sizes.block_tokens - 1) / sizes.block_tokens;
    all.insert(all.end(), s.blocks.begin(), s.blocks.begin() + static_cast<std::ptrdiff_t>(n));
  }
  std::ranges::sort(all);
  return all.size() - std::ranges::unique(all).size();
}

}  // namespace

std::vector<std::byte> encode(const step_order& o) {
  byte_writer to;
  to.number(order_magic);
  to.number(version);
  to.number(o.number);
  to.number(static_cast<std::uint32_t>(o.over.size()));
  for (auto id : o.over) to.number(id);
  to.number(static_cast<std::uint32_t>(o.sequences.size()));
  for (auto& s : o.sequences) {
    to.number(s.start);
    to.number(std::uint32_t{s.sample});
    to.list(s.tokens);
    to.list(s.blocks);
  }
  to.number(static_cast<std::uint32_t>(o.sampled.size()));
  for (auto& s : o.sampled) {
    to.number(s.id);
    to.number(s.position);
    to.number(std::uint32_t{s.begins != nullptr});
    if (s.begins) write(to, *s.begins);
  }
  to.number(static_cast<std::uint32_t>(o.told.size()));
  for (auto& t : o.told) {
    to.number(t.sequence);
    to.number(t.number);
    to.number(t.tokens.first);
    to.number(t.tokens.count);
  }
  to.number(static_cast<std::uint32_t>(o.copied.size()));
  for (auto& c : o.copied) {
    to.number(c.sequence);
    to.number(c.id);
    to.number(c.room);
  }
  to.number(static_cast<std::uint32_t>(o.forgotten.size()));
  for (auto id : o.forgotten) to.number(id);
  to.list(o.refreshed);
  return to.take();
}

result<step_order> decode_order(std::span<const std::byte> bytes, const stage_sizes& sizes, std::uint32_t vocab) {
  byte_reader from(bytes);
  step_order o;
  if (!from.headed(order_magic, version)) return errc::protocol;
  o.number = from.number<std::uint64_t>();
  o.over.resize(from.count(bytes.size(), 8));
  for (auto& id : o.over) id = from.number<std::uint64_t>();
  std::size_t rows = 0, samples = 0;
  for (auto n = from.count(sizes.max_running, 20); n > 0 && from.good(); --n) {
    o.sequences.push_back(read_sequence(from, sizes, vocab));
    rows += o.sequences.back().tokens.size();
    samples += o.sequences.back().sample;
  }
  for (auto n = from.count(sizes.max_running, 20); n > 0 && from.good(); --n) {
    auto& s = o.sampled.emplace_back();
    s.id = from.number<std::uint64_t>();
    s.position = from.number<std::uint64_t>();
    if (from.flag()) s.begins = read_state(from, sizes, vocab);
    if (s.position > sizes.max_sequence) from.spoil();
  }
  for (auto n = from.count(sizes.max_running, 20); n > 0 && from.good(); --n) {
    auto& t = o.told.emplace_back();
    t.sequence = from.number<std::uint32_t>();
    t.number = from.number<std::uint64_t>();
    t.tokens.first = from.number<std::uint32_t>();
    t.tokens.count = from.number<std::uint32_t>();
    if (t.sequence >= o.sequences.size()) {
      from.spoil();
      break;
    }
    const auto& s = o.sequences[t.sequence];
    if (t.tokens.count == 0 || t.tokens.first < s.start || t.tokens.end() > std::uint64_t{s.start} + s.tokens.size())
      from.spoil();
  }
  for (auto n = from.count(sizes.max_running, 16); n > 0 && from.good(); --n) {
    auto& c = o.copied.emplace_back();
    c.sequence = from.number<std::uint32_t>();
    c.id = from.number<std::uint64_t>();
    c.room = from.number<std::uint32_t>();
    const auto before = o.copied.size() < 2 ? nullptr : &o.copied[o.copied.size() - 2];
    const bool twice =
        (before && c.sequence <= before->sequence) || std::ranges::count(o.copied, c.id, &ordered_copy::id) > 1;
    if (c.sequence >= o.sequences.size() || c.id == 0 || c.room > sizes.max_sequence || sizes.copies == 0 || twice)
      from.spoil();
  }
  o.forgotten.resize(from.count(sizes.copies == 0 ? 0 : bytes.size(), 8));
  for (auto& id : o.forgotten) id = from.number<std::uint64_t>();
  o.refreshed = from.list<block_index>(sizes.slots == 0 ? 0 : sizes.kv_blocks);
  if (std::ranges::any_of(o.refreshed, [&](auto b) { return b >= sizes.kv_blocks; })) from.spoil();
  if (from.good() && sizes.slots > 0 && blocks_of(o, sizes) > sizes.slots / 2) from.spoil();
  if (rows == 0 || rows > sizes.max_batched_tokens || (!o.sampled.empty() && o.sampled.size() != samples)) from.spoil();
  if (!from.over()) return errc::protocol;
  return o;
}

std::vector<std::byte> encode(const step_outcome& o) {
  byte_writer to;
  to.number(outcome_magic);
  to.number(version);
  to.number(o.number);
  to.number(static_cast<std::uint32_t>(o.sampled.size()));
  for (auto& s : o.sampled) {
    to.number(s.token ? std::uint32_t{0} : to_wire(s.token.error()));
    to.number(static_cast<std::uint32_t>(s.token ? *s.token : 0));
    to.number(std::uint32_t{s.logprobs.has_value()});
    if (!s.logprobs) continue;
    to.real(s.logprobs->chosen);
    to.number(static_cast<std::uint32_t>(s.logprobs->top.size()));
    for (auto& t : s.logprobs->top) {
      to.number(static_cast<std::uint32_t>(t.token));
      to.real(t.logprob);
    }
  }
  return to.take();
}

result<step_outcome> decode_outcome(std::span<const std::byte> bytes, std::size_t samples, std::uint32_t vocab) {
  byte_reader from(bytes);
  step_outcome o;
  if (!from.headed(outcome_magic, version)) return errc::protocol;
  o.number = from.number<std::uint64_t>();
  if (from.count(samples, 12) != samples) return errc::protocol;
  for (std::size_t i = 0; i < samples && from.good(); ++i) {
    auto& s = o.sampled.emplace_back();
    const auto code = from.number<std::uint32_t>();
    const auto token = static_cast<token_id>(from.number<std::uint32_t>());
    s.token = code == 0 ? result<token_id>(token) : result<token_id>(from_wire(code));
    if (code == 0 && !known({&token, 1}, vocab)) from.spoil();
    if (!from.flag()) continue;
    s.logprobs.emplace();
    s.logprobs->chosen = from.real();
    s.logprobs->top.resize(from.count(vocab, 8));
    for (auto& t : s.logprobs->top) {
      t.token = static_cast<token_id>(from.number<std::uint32_t>());
      t.logprob = from.real();
      if (!known({&t.token, 1}, vocab)) from.spoil();
    }
  }
  if (!from.over()) return errc::protocol;
  return o;
}

bool is_swap(std::span<const std::byte> bytes) {
  const auto magic = byte_reader(bytes).number<std::uint32_t>();
  return magic == swap_magic || magic == swapped_magic;
}

std::vector<std::byte> encode(const swap_order& o) {
  byte_writer to;
  to.number(swap_magic);
  to.number(version);
  to.number(o.number);
  to.number(std::uint32_t{o.out});
  to.list(o.device);
  to.list(o.host);
  return to.take();
}

result<swap_order> decode_swap(std::span<const std::byte> bytes, const stage_sizes& sizes) {
  byte_reader from(bytes);
  if (!from.headed(swap_magic, version)) return errc::protocol;
  swap_order o{from.number<std::uint64_t>(), from.flag()};
  const auto most = sizes.max_sequence / sizes.block_tokens + 1;
  o.device = from.list<block_index>(most);
  o.host = from.list<block_index>(most);
  const auto within = [](const std::vector<block_index>& blocks, std::uint32_t end) {
    return std::ranges::all_of(blocks, [end](block_index b) { return b < end; });
  };
  if (!from.over() || o.device.empty() || o.device.size() != o.host.size() || !within(o.device, sizes.kv_blocks) ||
      !within(o.host, sizes.host_blocks))
    return errc::protocol;
  return o;
}

std::vector<std::byte> encode(const swap_outcome& o) {
  byte_writer to;
  to.number(swapped_magic);
  to.number(version);
  to.number(o.number);
  to.number(o.why ? to_wire(o.why) : std::uint32_t{0});
  return to.take();
}

result<swap_outcome> decode_swap_outcome(std::span<const std::byte> bytes) {
  byte_reader from(bytes);
  if (!from.headed(swapped_magic, version)) return errc::protocol;
  swap_outcome o{from.number<std::uint64_t>(), {}};
  const auto code = from.number<std::uint32_t>();
  if (code != 0) o.why = from_wire(code);
  if (!from.over()) return errc::protocol;
  return o;
}

}  // namespace cokv::detail

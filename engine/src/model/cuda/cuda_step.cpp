#include "model/cuda/cuda_step.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace cokv {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t least_slots = 1024;  // of attention's parts: what one more of them takes moves nothing

// Memory of its own for each of several things, all in one allocation.
class carver {
 public:
  template <class T>
  void add(T*& to, std::size_t bytes) {
    places_.push_back(
        {[](void* pointer, std::byte* at) { *static_cast<T**>(pointer) = reinterpret_cast<T*>(at); }, &to, bytes_});
    bytes_ += (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  }
  std::size_t bytes() const noexcept { return bytes_; }
  void carve(std::byte* from) const {
    for (auto& p : places_) p.set(p.pointer, from + p.at);
  }

 private:
  struct place {
    void (*set)(void* pointer, std::byte* at);
    void* pointer;
    std::size_t at;
  };
  std::vector<place> places_;
  std::size_t bytes_ = 0;
};

// A little more than there is: what grows from step to step does not change with each of them.
std::size_t roomy(std::size_t n, std::size_t least) {
  const auto step = std::max(least, std::bit_ceil(n) / 8);
  return (n + step - 1) / step * step;
}

error_code grow(device& where, buffer& b, std::size_t bytes, memory_kind kind) {
  if (b.size() >= bytes && !b.empty()) return {};
  b = {};  // its memory may be what there is room for
  auto made = where.allocate(std::max<std::size_t>(roomy(bytes, 4096), 4096), kind);
  if (!made) return made.error();
  b = *made;
  return {};
}

}  // namespace

bool is_decoding(const batch& step) {
  return std::ranges::all_of(step.sequences, [](const batch_sequence& s) { return s.sample && s.tokens.size() == 1; });
}

template <class T>
std::size_t step_words::append(std::span<const T> values) {
  constexpr auto word = sizeof(std::uint32_t), align = std::max(alignof(T) / word, std::size_t{1});
  static_assert(sizeof(T) % word == 0 && align <= alignment);
  const auto at = (words.size() + align - 1) / align * align;
  words.resize(at + values.size_bytes() / word);
  if (!values.empty()) std::memcpy(words.data() + at, values.data(), values.size_bytes());
  return at;
}

// A list that grows from step to step: with room to do so.
template <class T>
std::size_t step_words::append_growing(std::span<const T> values) {
  const auto at = append(values);
  if (!decodes) return at;
  words.resize(words.size() + (roomy(values.size(), 64) - values.size()) * sizeof(T) / sizeof(std::uint32_t));
  return at;
}

step_attention step_words::attention_of(const std::vector<kernel::gpu::attention_sequence>& sequences,
                                        const model_config& c, dtype compute) {
  step_attention out;
  out.plan = kernel::plan_attention(compute, c.heads, c.kv_heads, c.head_dim, sequences);
  if (decodes) {
    out.plan.parts = std::bit_ceil(out.plan.parts);
    out.plan.slots = roomy(out.plan.slots, least_slots);
  }
  out.sequences = append<kernel::gpu::attention_sequence>(sequences);
  out.prompt = append<kernel::gpu::attention_tile>(out.plan.prompt);
  out.decode = append<kernel::gpu::attention_tile>(out.plan.decode);
  out.plain = append<kernel::gpu::attention_tile>(out.plan.plain);
  return out;
}

step_words::step_words(const batch& step, std::span<const fed_token> feed, const model_config& config, dtype compute,
                       const model_part& part)
    : rows(step.rows()),
      samples(part.last() ? step.samples() : 0),
      chooses(part.last() && part.who.rank == 0),
      rows_move(!part.whole()),
      decodes(is_decoding(step)) {
  std::vector<std::uint32_t> token, positions, tables, q_row, last_row, lists, first_row;
  std::vector<kernel::gpu::attention_sequence> each, ends;
  for (auto& s : step.sequences) {
    const auto count = static_cast<std::uint32_t>(s.tokens.size()), row = static_cast<std::uint32_t>(positions.size()),
               list = static_cast<std::uint32_t>(lists.size());
    first_row.push_back(row);
    each.push_back({s.start, count, row, list});
    for (std::uint32_t t = 0; t < count; ++t) {
      const bool wanted = part.last() && s.sample && t + 1 == count;
      token.push_back(static_cast<std::uint32_t>(s.tokens[t]));
      positions.push_back(s.start + t), tables.push_back(list);
      q_row.push_back(wanted ? static_cast<std::uint32_t>(ends.size()) : kernel::gpu::not_kept);
    }
    if (part.last() && s.sample) {
      ends.push_back({s.start + count - 1, 1, static_cast<std::uint32_t>(ends.size()), list});
      last_row.push_back(row + count - 1);
    }
    lists.insert(lists.end(), s.blocks.begin(), s.blocks.end());
  }
  tokens = append<std::uint32_t>(token);
  position = append<std::uint32_t>(positions);
  table = append<std::uint32_t>(tables);
  kept = append<std::uint32_t>(q_row);
  sampled = append<std::uint32_t>(last_row);
  blocks = append_growing<std::uint32_t>(lists);
  all = attention_of(each, config, compute);
  last = attention_of(ends, config, compute);
  wants_logits = chooses && step.sampled.empty();
  if (chooses) add_choices(step, last_row, config.vocab);
  std::vector<kernel::gpu::fed_place> places;
  for (auto& f : feed) places.push_back({static_cast<std::uint32_t>(f.sample), first_row[f.sequence]});
  feeds = places.size();
  fed = append<kernel::gpu::fed_place>(places);
}

void step_words::add_choices(const batch& step, std::span<const std::uint32_t> last_row, std::uint32_t vocab) {
  std::vector<kernel::gpu::sample_row> of;
  std::vector<std::uint32_t> tokens_before;
  std::vector<kernel::gpu::token_bias_at> favours;
  for (std::size_t i = 0; i < step.sampled.size(); ++i) {
    auto& one = step.sampled[i];
    auto& how = *one.how;
    auto& p = how.params;
    kernel::gpu::sample_row row{};
    row.seed = p.seed, row.position = one.position;
    row.temperature = p.temperature, row.top_p = p.top_p, row.min_p = p.min_p, row.top_k = p.top_k;
    row.repetition = p.repetition_penalty, row.presence = p.presence_penalty, row.frequency = p.frequency_penalty;
    row.last = kernel::gpu::not_kept;
    row.history = static_cast<std::uint32_t>(tokens_before.size());
    if (row.looks_back()) {
      looks_back = true;
      how.go_back_to(one.position);
      for (auto* list : {&how.prompt, &how.answer})
        for (auto t : *list) tokens_before.push_back(static_cast<std::uint32_t>(t));
      row.prompt = static_cast<std::uint32_t>(how.prompt.size());
      row.answer = static_cast<std::uint32_t>(how.answer.size());
      // What goes in is the last that came out, where that is not known here yet.
      if (how.first + how.answer.size() < one.position) row.last = last_row[i];
    }
    row.bias = static_cast<std::uint32_t>(favours.size());
    bool unknown = false;
    for (auto& b : p.logit_bias) {
      unknown |= b.token < 0 || static_cast<std::uint32_t>(b.token) >= vocab;
      if (!unknown) favours.push_back({static_cast<std::uint32_t>(b.token), b.bias});
    }
    row.biases = static_cast<std::uint32_t>(favours.size()) - row.bias;
    refused.push_back(unknown);
    wants_logits |= how.logprobs.has_value();
    of.push_back(row);
  }
  choices = append<kernel::gpu::sample_row>(of);
  history = append<std::uint32_t>(tokens_before);
  biases = append<kernel::gpu::token_bias_at>(favours);
}

step_shape cuda_step::shape(const kernel::gpu::paged_kv& kv) const {
  const auto& w = words_;
  auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  step_shape out{address(kv.base), kv.block_bytes, kv.block_tokens, address(far.data()), address(far_words.data()),
                 w.rows,           w.samples,      w.tokens,        w.position,          w.table,
                 w.kept,           w.sampled,      w.blocks};
  for (auto* a : {&w.all, &w.last})
    out.insert(out.end(), {a->sequences, a->prompt, a->decode, a->plain, a->plan.parts, a->plan.prompt.size(),
                           a->plan.decode.size(), a->plan.plain.size()});
  // What lies between the two.
  for (const void* p : {static_cast<const void*>(x), static_cast<const void*>(tops), static_cast<const void*>(results)})
    out.push_back(address(p));
  return out;
}

error_code cuda_step::prepare(device& where, const model_config& c, dtype compute, step_words with) {
  words_ = std::move(with);
  const auto rows = words_.rows, samples = words_.samples, each = size_of(compute);
  const std::size_t h = c.hidden, q_width = std::size_t{c.heads} * c.head_dim,
                    width = std::size_t{c.heads + 2 * c.kv_heads} * c.head_dim, mlp = c.intermediate;
  const auto bytes_of_words = words_.words.size() * sizeof(std::uint32_t),
             logit_bytes = words_.chooses ? samples * c.vocab * sizeof(float) : 0;
  const auto scratch = sizeof(float) * std::max(words_.all.plan.slots, words_.last.plan.slots);
  carver from;
  std::byte *room = nullptr, *wide = nullptr, *table = nullptr, *tokens = nullptr;
  const auto token_bytes = samples * sizeof(std::int32_t);
  from.add(room, kernel::device_products::workspace_bytes);
  from.add(wide, logit_bytes), from.add(tokens, token_bytes);
  from.add(x, rows * h * sizeof(float)), from.add(sampled_x, samples * h * sizeof(float));
  from.add(qkv, rows * width * sizeof(float));
  from.add(up, rows * mlp * (c.gated ? 2 : 1) * sizeof(float));
  from.add(narrow, c.embedding_dim == c.hidden ? 0 : samples * c.embedding_dim * sizeof(float));
  from.add(turns, rows * (c.rotary_dims / 2) * sizeof(kernel::gpu::float_pair));
  from.add(input, rows * std::max<std::size_t>(h, c.embedding_dim) * each);
  from.add(q, rows * q_width * each), from.add(attended, rows * q_width * each);
  from.add(active, rows * mlp * each);
  from.add(tops, scratch), from.add(sums, scratch), from.add(results, scratch * c.head_dim);
  // Behind what replays are told of: their size changes from step to step.
  from.add(table, bytes_of_words), from.add(times, words_.looks_back ? logit_bytes : 0);

  if (auto ec = grow(where, near_words, bytes_of_words, memory_kind::pinned)) return ec;
  if (auto ec = grow(where, near_rows, words_.rows_move ? rows * h * sizeof(float) : 0, memory_kind::pinned)) return ec;
  if (auto ec = grow(where, near_logits, words_.wants_logits ? logit_bytes : 0, memory_kind::pinned)) return ec;
  if (auto ec = grow(where, near_chosen, token_bytes, memory_kind::pinned)) return ec;
  if (from.bytes() > far.size()) {
    workspace = far_words = logits = chosen = {};
    graphs.clear();
  }
  if (auto ec = grow(where, far, from.bytes(), memory_kind::device)) return ec;
  from.carve(far.data());
  workspace = slice_of(room, kernel::device_products::workspace_bytes);
  far_words = slice_of(table, bytes_of_words);
  logits = slice_of(wide, logit_bytes);
  chosen = slice_of(tokens, token_bytes);
  std::memcpy(near_words.data(), words_.words.data(), bytes_of_words);
  return {};
}

}  // namespace cokv

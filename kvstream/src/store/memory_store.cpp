#include "cokv/kvstream/memory_store.hpp"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "cokv/kvstream/digest.hpp"
#include "store/block_memory.hpp"
#include "store/tenant_order.hpp"

namespace cokv {

using detail::finish;
using detail::stored_id;

namespace {

struct block {
  block(const buffer& memory, detail::tenant_order::account_ptr who, std::shared_ptr<const block_layout> l)
      : layout(std::move(l)), taken(std::move(who), layout->bytes()), digests(layout->layers()) {
    std::uint64_t at = 0;
    for (auto s : layout->segments) {
      segments.push_back(memory.slice(at, s));
      at += s;
    }
  }

  std::shared_ptr<const block_layout> layout;
  // For as long as the memory is there, and so before it here: a removed block that is still being read counts until it
  // is not.
  detail::tenant_order::charge taken;
  std::vector<buffer> segments;
  std::vector<std::uint64_t> digests;
  std::uint64_t life = 0;  // which one it is of all that this store had
  bool viewed = false;     // shown to somebody unread, who may have found damage
};

bool intact(const block& b) {
  for (std::uint32_t layer = 0; layer < b.layout->layers(); ++layer)
    if (digest_of(b.segments[layer].bytes()) != b.digests[layer]) return false;
  return true;
}

// A segment that keeps its block, so that its memory counts as long as anybody has it.
buffer segment_of(const std::shared_ptr<block>& b, std::uint32_t layer) {
  const auto& s = b->segments[layer];
  return buffer::adopt(s.data(), s.size(), s.kind(), b);
}

readable_memory arena_of(const memory_store_options& o) {
  if (!o.readable) return {buffer::reserve(o.limit_bytes), nullptr};
  auto made = readable_memory::make(o.limit_bytes);
  if (!made) throw config_error("memory store: " + made.error().message());
  return std::move(*made);
}

}  // namespace

struct memory_store::state {
  explicit state(const memory_store_options& o)
      : whole(arena_of(o)),
        memory(std::make_shared<detail::block_memory>(whole.memory)),
        order(o.limit_bytes, o.quotas),
        digests(o.digest != digest_algorithm::none),
        on_change(o.on_change) {}

  // The block as it was written, or nothing. Whoever finds damage in what it got computes the block and writes it again,
  // so a block that is written again was damaged if anybody could know; one that nobody was shown since is not looked at.
  std::shared_ptr<block> find_sound(const stored_id& id) {
    auto b = find(id);
    if (!b || !b->viewed) return b;
    if (intact(*b)) {
      b->viewed = b.use_count() > 2;  // who still has it may find something yet
      return b;
    }
    ++counters.digest_failures;
    drop(id);
    return nullptr;
  }

  std::shared_ptr<block> find(const stored_id& id) const {
    auto b = blocks.find(id);
    return b == blocks.end() ? nullptr : b->second;
  }

  void drop(const stored_id& id) {
    order.erase(id);
    if (blocks.erase(id) != 0) tell(store_change::kind::removed, id);
  }

  void tell(store_change::kind what, const stored_id& id) const {
    if (on_change) on_change({what, id.ns, {id.key}});
  }

  bool make_room(const detail::tenant_order::account& who, std::uint64_t bytes) {
    if (order.judge(who, bytes) != detail::tenant_order::verdict::fits)
      return false;  // nothing is given up for nothing
    return order.make_room(who, bytes, [this](const stored_id& id) { give_up(id); });
  }

  void give_up(const stored_id& id) {
    blocks.erase(id);
    ++counters.evicted_blocks;
    tell(store_change::kind::removed, id);
  }

  // After make_room(). Among blocks of other sizes there may be room, but nowhere in one piece: null when that is so and
  // nothing may be given up.
  std::shared_ptr<block> make_block(const detail::tenant_order::account_ptr& who,
                                    const std::shared_ptr<const block_layout>& layout) {
    auto place = memory->take(layout->bytes());
    while (place.data() == nullptr) {
      if (!order.make_way(*who, layout->bytes(), [this](const stored_id& id) { give_up(id); })) return nullptr;
      place = memory->take(layout->bytes());
    }
    auto made = std::make_shared<block>(place, who, layout);
    made->life = ++lives;
    return made;
  }

  std::unordered_map<stored_id, std::shared_ptr<block>, detail::stored_id_hash> blocks;
  readable_memory whole;
  std::shared_ptr<detail::block_memory> memory;
  detail::tenant_order order;
  bool digests;
  store_info counters;
  change_handler on_change;
  std::uint64_t lives = 0;
};

namespace {

// Blocks that may not be given up while this is there.
class pins {
 public:
  explicit pins(std::shared_ptr<memory_store::state> s) : state_(std::move(s)) {}
  pins(const pins&) = delete;
  pins& operator=(const pins&) = delete;
  ~pins() {
    for (auto& [id, pin] : held_) state_->order.unpin(id, pin);
  }
  void add(const stored_id& id) { held_.emplace_back(id, state_->order.pin(id)); }

 private:
  std::shared_ptr<memory_store::state> state_;
  std::vector<std::pair<stored_id, std::uint64_t>> held_;
};

class memory_writer final : public block_writer {
 public:
  memory_writer(asio::any_io_executor ex, std::shared_ptr<memory_store::state> s, namespace_id ns, block_layout layout,
                std::vector<block_key> keys, const write_options& options)
      : block_writer(std::move(ex)),
        state_(std::move(s)),
        ns_(ns),
        force_(options.force),
        account_(state_->order.account_of(options.tenant)),
        layout_(std::make_shared<const block_layout>(std::move(layout))),
        keys_(std::move(keys)),
        blocks_(keys_.size()),
        written_(layout_->layers()),
        present_(state_) {}

  ~memory_writer() override {
    if (!done_) state_->counters.failed_writes += fresh_;
  }

  error_code reserve() {
    std::uint64_t bytes = layout_->bytes(), fresh = 0;
    for (auto& k : keys_) {
      auto there = force_ ? nullptr : state_->find_sound({ns_, k});
      if (there && *there->layout != *layout_) return errc::namespace_mismatch;
      if (there)
        present_.add({ns_, k});
      else
        ++fresh;
    }
    fresh_ = fresh;
    if (bytes > state_->order.most(*account_) / std::max<std::uint64_t>(fresh, 1)) return errc::too_large;
    if (!state_->make_room(*account_, bytes * fresh)) return errc::store_full;
    try {
      for (std::size_t i = 0; i < keys_.size(); ++i)
        if (force_ || !state_->find({ns_, keys_[i]}))
          if (!(blocks_[i] = state_->make_block(account_, layout_))) return errc::store_full;
    } catch (const std::bad_alloc&) {
      return errc::out_of_memory;
    }
    return {};
  }

 private:
  void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
    finish(std::move(handler), get_executor(), write(layer, segments));
  }

  void do_placed(std::uint32_t layer, std::vector<std::uint64_t> digests, done_handler handler) override {
    finish(std::move(handler), get_executor(), placed(layer, digests));
  }

  void do_commit(done_handler handler) override { finish(std::move(handler), get_executor(), commit()); }

  std::vector<buffer> place(std::uint32_t layer) override {
    std::vector<buffer> out(keys_.size());
    if (done_ || layer >= layout_->layers()) return {};
    for (std::size_t i = 0; i < keys_.size(); ++i)
      if (blocks_[i]) out[i] = segment_of(blocks_[i], layer);
    return out;
  }

  error_code placed(std::uint32_t layer, const std::vector<std::uint64_t>& digests) {
    if (done_) return errc::closed;
    if (layer >= layout_->layers()) return errc::out_of_range;
    if (written_[layer] || (!digests.empty() && digests.size() != keys_.size())) return errc::invalid_argument;
    for (std::size_t i = 0; i < keys_.size(); ++i)
      if (auto& b = blocks_[i]; b && state_->digests)
        b->digests[layer] = digests.empty() ? digest_of(b->segments[layer].bytes()) : digests[i];
    written_[layer] = true;
    return {};
  }

  error_code write(std::uint32_t layer, const std::vector<buffer>& segments) {
    if (done_) return errc::closed;
    if (auto ec = detail::check_buffers(*layout_, keys_.size(), layer, segments)) return ec;
    if (written_[layer]) return errc::invalid_argument;
    for (std::size_t i = 0; i < segments.size(); ++i)
      if (auto& b = blocks_[i]) {
        const auto into = b->segments[layer].bytes();
        state_->digests ? void(b->digests[layer] = copy_digest(into, segments[i].bytes()))
                        : copy_bytes(into, segments[i].bytes());
      }
    written_[layer] = true;
    return {};
  }

  error_code commit() {
    if (done_) return errc::closed;
    if (std::find(written_.begin(), written_.end(), false) != written_.end()) return errc::invalid_argument;
    done_ = true;
    // From the last: of blocks that came together, those at the end of the prefix are given up first.
    store_change shown{store_change::kind::stored, ns_, {}};
    for (auto i = keys_.size(); i-- > 0;) {
      stored_id id{ns_, keys_[i]};
      if (!blocks_[i] || (!force_ && state_->find(id))) continue;
      state_->drop(id);
      state_->counters.written_blocks += 1;
      state_->counters.written_bytes += layout_->bytes();
      state_->blocks.emplace(id, std::move(blocks_[i]));
      state_->order.insert(id, layout_->bytes(), account_);
      shown.keys.push_back(keys_[i]);
    }
    blocks_.clear();
    std::reverse(shown.keys.begin(), shown.keys.end());
    if (state_->on_change && !shown.keys.empty()) state_->on_change(shown);
    return {};
  }

  std::shared_ptr<memory_store::state> state_;
  namespace_id ns_;
  bool force_;
  detail::tenant_order::account_ptr account_;
  std::shared_ptr<const block_layout> layout_;
  std::vector<block_key> keys_;
  std::vector<std::shared_ptr<block>> blocks_;  // empty where the key is there already
  std::vector<bool> written_;
  pins present_;
  std::uint64_t fresh_ = 0;
  bool done_ = false;
};

class memory_reader final : public block_reader {
 public:
  memory_reader(asio::any_io_executor ex, std::shared_ptr<memory_store::state> s, namespace_id ns, block_layout layout,
                std::vector<block_key> keys)
      : block_reader(std::move(ex)),
        state_(std::move(s)),
        ns_(ns),
        layout_(std::move(layout)),
        keys_(std::move(keys)),
        pins_(state_) {
    for (auto& k : keys_) {
      auto b = state_->find({ns_, k});
      if (!b || *b->layout != layout_) break;
      pins_.add({ns_, k});
      state_->order.touch({ns_, k});
      blocks_.push_back(std::move(b));
    }
    good_ = blocks_.size();
    state_->counters.hits += good_;
    state_->counters.misses += keys_.size() - good_;
  }

  std::size_t found() const noexcept override { return blocks_.size(); }
  bool views_at_once() const noexcept override { return true; }
  result<std::size_t> read_now(std::uint32_t layer, const std::vector<buffer>& into) override {
    if (auto ec = detail::check_buffers(layout_, keys_.size(), found(), layer, into)) return ec;
    if (layer < next_) return errc::invalid_argument;
    read(layer, into);
    return good_;
  }
  result<std::vector<segment_view>> view_now(std::uint32_t layer) override {
    if (layer >= layout_.layers()) return errc::out_of_range;
    if (layer < next_) return errc::invalid_argument;
    next_ = layer + 1;
    std::vector<segment_view> views;
    views.reserve(good_);
    for (std::size_t i = 0; i < good_; ++i) {
      blocks_[i]->viewed = state_->digests;
      views.push_back({segment_of(blocks_[i], layer), {}, blocks_[i]->life});
      if (state_->digests) views.back().digest = blocks_[i]->digests[layer];
      state_->counters.read_segments += 1;
      state_->counters.read_bytes += views.back().bytes.size();
    }
    return views;
  }

 private:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    finish(std::move(handler), get_executor(), read_now(layer, into));
  }

  // False when it is damaged.
  bool copy_segment(const buffer& into, const block& from, std::uint32_t layer) const {
    const auto bytes = from.segments[layer].bytes();
    if (state_->digests) return copy_digest(into.bytes(), bytes) == from.digests[layer];
    copy_bytes(into.bytes(), bytes);
    return true;
  }

  void read(std::uint32_t layer, const std::vector<buffer>& into) {
    next_ = layer + 1;
    for (std::size_t i = 0; i < good_; ++i) {
      auto& b = *blocks_[i];
      if (!copy_segment(into[i], b, layer)) {
        ++state_->counters.digest_failures;
        // Only what was found damaged: another may have come under this key since.
        if (state_->find({ns_, keys_[i]}) == blocks_[i]) state_->drop({ns_, keys_[i]});
        good_ = i;
        break;
      }
      state_->counters.read_segments += 1;
      state_->counters.read_bytes += into[i].size();
    }
  }

  std::shared_ptr<memory_store::state> state_;
  namespace_id ns_;
  block_layout layout_;
  std::vector<block_key> keys_;
  std::vector<std::shared_ptr<block>> blocks_;
  pins pins_;
  std::size_t good_ = 0;
  std::uint32_t next_ = 0;
};

}  // namespace

memory_store::memory_store(asio::any_io_executor ex, memory_store_options options)
    : store(std::move(ex)), state_(std::make_shared<state>(options)) {
  if (options.limit_bytes == 0) throw config_error("memory store: limit is 0 bytes");
}

// What its readers and writers keep alive tells nobody any more.
memory_store::~memory_store() { state_->on_change = nullptr; }

store_info memory_store::info() const {
  auto out = state_->counters;
  out.kind = "memory";
  out.limit_bytes = state_->order.limit();
  out.used_bytes = state_->order.used();
  out.blocks = state_->blocks.size();
  out.leased_blocks = state_->order.pinned();
  out.leased_bytes = state_->order.leased_bytes();
  out.tenants = state_->order.tenants();
  return out;
}

const readable_memory& memory_store::lent() const { return state_->whole; }

void memory_store::set_quotas(const tenant_quotas& quotas) { state_->order.set_quotas(quotas); }

buffer memory_store::stored_segment(const namespace_id& ns, const block_key& key, std::uint32_t layer) const {
  auto b = state_->find({ns, key});
  return b && layer < b->segments.size() ? segment_of(b, layer) : buffer();
}

void memory_store::do_match(namespace_id ns, std::vector<block_key> keys, match_options options,
                            count_handler handler) {
  std::size_t n = 0;
  while (n < keys.size() && state_->find({ns, keys[n]})) ++n;
  for (std::size_t i = 0; options.refresh && i < n; ++i) state_->order.touch({ns, keys[i]});
  finish(std::move(handler), get_executor(), {}, n);
}

void memory_store::do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                 write_options options, writer_handler handler) {
  auto ec = detail::check_request(layout, keys);
  if (!ec) ec = detail::check_distinct(keys);
  std::unique_ptr<memory_writer> writer;
  if (!ec) {
    writer = std::make_unique<memory_writer>(get_executor(), state_, ns, std::move(layout), std::move(keys), options);
    ec = writer->reserve();
    if (ec) writer.reset();
  }
  finish(std::move(handler), get_executor(), ec, std::unique_ptr<block_writer>(std::move(writer)));
}

void memory_store::do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                reader_handler handler) {
  std::unique_ptr<block_reader> reader;
  auto ec = detail::check_request(layout, keys);
  if (!ec) reader = std::make_unique<memory_reader>(get_executor(), state_, ns, std::move(layout), std::move(keys));
  finish(std::move(handler), get_executor(), ec, std::move(reader));
}

void memory_store::do_layout(namespace_id ns, block_key key, layout_handler handler) {
  const auto found = state_->find({ns, key});
  finish(std::move(handler), get_executor(), found ? error_code() : make_error_code(errc::not_found),
         found ? *found->layout : block_layout());
}

void memory_store::do_remove(namespace_id ns, block_key key, done_handler handler) {
  stored_id id{ns, key};
  error_code ec;
  if (state_->find(id))
    state_->drop(id);
  else
    ec = errc::not_found;
  finish(std::move(handler), get_executor(), ec);
}

}  // namespace cokv

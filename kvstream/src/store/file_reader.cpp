#include <algorithm>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "store/file_store_state.hpp"

namespace cokv::detail {
namespace {

// Small segments that lie together are read together, so many bytes at a time; what is larger goes by itself, beside
// others.
constexpr std::uint64_t run_bytes = std::uint64_t{256} << 10;

// The read of some blocks; operations in flight share it, so it may outlive its block_reader.
struct read_job {
  struct slot {
    std::shared_ptr<const log_group> group;
    std::uint32_t member = 0;
    std::vector<std::uint64_t> digests;
  };
  struct run {
    std::size_t first, count;  // of the slots
  };

  read_job(std::shared_ptr<file_store::state> s, block_layout l, namespace_id n, std::size_t k)
      : store(std::move(s)), layout(std::move(l)), ns(n), keys(k), holds(store) {}

  std::shared_ptr<file_store::state> store;
  block_layout layout;
  namespace_id ns;
  std::size_t keys;
  std::size_t found = 0;
  std::vector<slot> slots;
  file_holds holds;
  std::size_t good = 0;
  std::uint32_t next = 0;
  error_code failed;

  // The prefix ends before this block: it is damaged, or somebody removed its file, and goes. What merely can't be read
  // just now stays, and is an error of the read.
  void damaged(std::size_t index) {
    good = std::min(good, index);
    ++store->counters.digest_failures;
    const auto& s = slots[index];
    const stored_id id{ns, s.group->blocks[s.member].key};
    if (const auto* b = store->book.find(id); b && b->group == s.group) store->book.erase(id);
    store->clean_later();
  }

  error_code not_opened(std::size_t index, error_code ec) {
    if (ec != boost::system::errc::no_such_file_or_directory) return ec;
    good = std::min(good, index);
    store->lose(slots[index].group->serial);
    return {};
  }

  // What the disk says of blocks that were entered together: `run` are all slots of one group.
  awaitable<error_code> read_entry(run r) {
    auto [wait_ec, admitted] = co_await store->admit();
    if (wait_ec) co_return wait_ec;
    const auto g = slots[r.first].group;
    auto [ec, f] = co_await store->open_log(g->serial);
    if (ec) co_return not_opened(r.first, ec);
    auto record = co_await store->read_record(*f, *g);
    if (!record && record.error().category() != cokv_category()) co_return record.error();
    const auto layers = layout.segments.size();
    for (std::size_t i = r.first; i < r.first + r.count; ++i) {
      const bool same = record && record->ns == ns && *record->extent.layout == layout;
      const auto place = same ? record->find(g->blocks[slots[i].member]) : std::nullopt;
      if (!place) {  // no block, or another one in this one's place
        damaged(i);
        if (!record) store->lose(g);
        break;
      }
      const auto at = record->digests.begin() + static_cast<std::ptrdiff_t>(*place * layers);
      slots[i].digests.assign(at, at + static_cast<std::ptrdiff_t>(layers));
    }
    co_return error_code();
  }

  // Slots of one group that follow each other on the disk, as far as `most` bytes of a layer go.
  std::vector<run> runs(std::uint32_t layer, std::uint64_t most) const {
    std::vector<run> out;
    for (std::size_t i = 0; i < good; ++i) {
      const auto& s = slots[i];
      if (!out.empty()) {
        auto& last = out.back();
        const auto& before = slots[i - 1];
        const bool next =
            s.group == before.group && s.group->blocks[s.member].place == before.group->blocks[before.member].place + 1;
        if (next && (last.count + 1) * s.group->extent.stride(layer) <= most) {
          ++last.count;
          continue;
        }
      }
      out.push_back({i, 1});
    }
    return out;
  }

  awaitable<error_code> read_segments(std::uint32_t layer, run r, const std::vector<buffer>& into) {
    if (r.first >= good) co_return error_code();
    auto [wait_ec, admitted] = co_await store->admit();
    if (wait_ec) co_return wait_ec;
    const auto& s = slots[r.first];
    auto [open_ec, f] = co_await store->open_log(s.group->serial);
    if (open_ec) co_return not_opened(r.first, open_ec);
    std::vector<asio::mutable_buffer> pieces;
    for (std::size_t i = r.first; i < r.first + r.count; ++i) pieces.emplace_back(into[i].data(), into[i].size());
    const auto& extent = s.group->extent;
    auto [ec, n] = co_await read_run(*f, store->staging, extent.segment_at(layer, s.group->blocks[s.member].place),
                                     extent.stride(layer), std::move(pieces));
    if (ec) co_return ec;
    for (std::size_t i = r.first; i < r.first + r.count; ++i) {
      const bool sealed = s.group->digest != digest_algorithm::none;
      if (i - r.first >= n || (sealed && digest_of(into[i].bytes()) != slots[i].digests[layer])) {
        damaged(i);
        break;
      }
      store->counters.read_segments += 1;
      store->counters.read_bytes += into[i].size();
    }
    co_return error_code();
  }

  awaitable<std::tuple<error_code, std::size_t>> read(std::uint32_t layer, std::vector<buffer> into) {
    auto result = [](error_code ec, std::size_t n) { return std::tuple(ec, n); };
    if (failed) co_return result(failed, 0);
    if (auto ec = check_buffers(layout, keys, found, layer, into)) co_return result(ec, 0);
    if (layer < next) co_return result(errc::invalid_argument, 0);
    next = layer + 1;
    failed = asio::error::operation_aborted;  // unless this comes to its end
    const auto all = runs(layer, run_bytes);
    failed = co_await for_each_index(all.size(), store->options.max_operations,
                                     [&](std::size_t i) { return read_segments(layer, all[i], into); });
    co_return result(failed, failed ? 0 : good);
  }
};

awaitable<std::tuple<error_code, std::size_t>> run_read(std::shared_ptr<read_job> job, std::uint32_t layer,
                                                        std::vector<buffer> into) {
  co_return co_await job->read(layer, std::move(into));
}

class file_reader final : public block_reader {
 public:
  explicit file_reader(std::shared_ptr<read_job> job) : block_reader(job->store->ex), job_(std::move(job)) {}
  std::size_t found() const noexcept override { return job_->found; }

 private:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    run_as_operation(get_executor(), run_read(job_, layer, std::move(into)), std::move(handler));
  }

  std::shared_ptr<read_job> job_;
};

}  // namespace

awaitable<std::tuple<error_code, std::unique_ptr<block_reader>>> open_file_reader(std::shared_ptr<file_store::state> s,
                                                                                  namespace_id ns, block_layout layout,
                                                                                  std::vector<block_key> keys) {
  auto fail = [](error_code ec) { return std::tuple(ec, std::unique_ptr<block_reader>()); };
  if (auto ec = check_request(layout, keys)) co_return fail(ec);
  auto job = std::make_shared<read_job>(s, std::move(layout), ns, keys.size());
  std::vector<read_job::run> groups;
  for (auto& k : keys) {
    const auto* b = s->book.find({ns, k});
    if (!b || *b->group->extent.layout != job->layout) break;
    job->holds.add({ns, k}, b->group->serial);
    if (job->slots.empty() || job->slots.back().group != b->group)
      groups.push_back({job->slots.size(), 1});
    else
      ++groups.back().count;
    job->slots.push_back({b->group, b->member, {}});
    s->book.touch({ns, k});
  }
  job->good = job->slots.size();
  auto ec = co_await for_each_index(groups.size(), s->options.max_operations,
                                    [&](std::size_t i) { return job->read_entry(groups[i]); });
  if (ec) co_return fail(ec);
  job->found = job->good;
  s->counters.hits += job->good;
  s->counters.misses += keys.size() - job->good;
  std::unique_ptr<block_reader> reader = std::make_unique<file_reader>(std::move(job));
  co_return std::tuple(error_code(), std::move(reader));
}

}  // namespace cokv::detail

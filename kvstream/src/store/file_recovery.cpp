// What a folder's files say of themselves when it is opened. Of a file that was sealed the index is enough; of one that
// was not, all batches but the last were synced, and of the last one what is whole counts.
#include <algorithm>

#include "cokv/kvstream/digest.hpp"
#include "store/file_store_state.hpp"

namespace cokv {

using detail::as_tuple;
using detail::log_kind;
using detail::stored_id;

struct file_store::state::found {
  struct entry {
    std::uint64_t sequence;
    std::uint64_t serial;
    std::shared_ptr<const detail::log_group> group;  // or
    detail::log_removal removal;
  };
  std::vector<entry> entries;
  recovery_progress progress;
};

// What the index of one file says.
struct file_store::state::said {
  std::vector<found::entry> entries;
  std::vector<std::pair<std::size_t, detail::log_record>> last;  // of the last batch, by place among them, with digests
  std::uint64_t batch = 0;                                       // the last one
  std::vector<std::uint64_t> damaged;                            // as log_chunk has it
  bool sealed = false;

  void take(const detail::log_found& e, std::uint64_t serial) {
    if (e.head.value > batch) {
      batch = e.head.value;
      last.clear();
    }
    if (e.head.kind == log_kind::removal) {
      if (auto r = detail::decode_log_removal(e.body)) entries.push_back({e.head.sequence, serial, nullptr, *r});
      return;
    }
    auto r = detail::decode_log_record(e.body);
    if (!r) return damaged.push_back(e.head.value);
    auto g = detail::make_log_group(*r, serial, e.head.at, e.body.size(), e.head.sequence);
    entries.push_back({e.head.sequence, serial, std::move(g), {}});
    if (e.head.value == batch) last.emplace_back(entries.size() - 1, std::move(*r));
  }
};

namespace {

// The blocks for which `good` holds; what is left out is counted.
template <class F>
std::size_t keep_if(std::shared_ptr<const detail::log_group>& group, F good) {
  auto kept = *group;
  const auto out = std::erase_if(kept.blocks, [&](const auto& m) { return !good(m); });
  if (out > 0) group = std::make_shared<const detail::log_group>(std::move(kept));
  return out;
}

}  // namespace

awaitable<result<detail::log_record>> file_store::state::read_record(file& f, const detail::log_group& g) {
  std::vector<std::byte> bytes(g.entry_bytes);
  auto [ec, n] = co_await detail::read_whole(f, staging, g.entry_at, bytes);
  if (ec) co_return ec;
  if (n < bytes.size()) co_return errc::digest_mismatch;
  auto head = detail::decode_log_head(bytes);
  if (!head) co_return head.error();
  const auto body = std::span<const std::byte>(bytes).subspan(detail::log_entry_head);
  const bool this_one = head->kind == log_kind::record && head->serial == g.serial && head->at == g.entry_at &&
                        head->sequence == g.sequence && head->bytes == g.entry_bytes;
  if (!this_one || detail::check_log_body(bytes, body)) co_return errc::digest_mismatch;
  co_return detail::decode_log_record(body);
}

awaitable<error_code> file_store::state::recover() {
  auto [made_ec] = co_await files.async_make_directories(options.directory, as_tuple());
  if (made_ec) co_return made_ec;
  auto [lock_ec, held] = co_await files.async_open(lock_path(), open_mode::lock, as_tuple());
  if (lock_ec) co_return lock_ec;
  file_lock = std::move(held);
  auto [log_ec] = co_await files.async_make_directories(log_directory(), as_tuple());
  if (log_ec) co_return log_ec;
  for (const auto& directory : {options.directory, log_directory()}) {
    auto [ec] = co_await files.async_sync_directory(directory, as_tuple());
    if (ec) co_return ec;
  }
  auto [top_ec, top] = co_await files.async_list(options.directory, as_tuple());
  if (top_ec) co_return top_ec;
  for (const auto& e : top) {
    // The folders of the layout before: one file a block, and those half-written.
    if (e.directory && e.name == "blocks")
      counters.refused += co_await count_old_blocks();
    else if (e.directory ? e.name != "log" && e.name != "tmp" : e.name != "lock")
      ++counters.refused;
  }

  const auto probe = log_directory() + "/probe";
  if (direct) co_await open_file(probe, open_mode::create);  // known before the first block comes
  co_await files.async_remove(probe, as_tuple());
  auto [list_ec, entries] = co_await files.async_list(log_directory(), as_tuple());
  if (list_ec) co_return list_ec;
  found all;
  for (const auto& e : entries) all.progress.bytes += e.size;
  all.progress.files = entries.size();
  auto read_one = [&](std::size_t i) -> awaitable<error_code> {
    auto ec = co_await recover_file(entries[i], all);
    all.progress.files_done += 1;
    all.progress.bytes_done += entries[i].size;
    if (options.progress) options.progress(all.progress);
    co_return ec;
  };
  if (auto ec = co_await detail::for_each_index(entries.size(), operations.available(), read_one)) co_return ec;

  // Now as it happened.
  std::ranges::sort(all.entries, {}, [](const auto& e) { return std::pair(e.sequence, e.serial); });
  const auto keep = [&](const detail::log_book::undone& r, std::uint64_t serial) {
    book.keep_removal(serial, r);
    book.removal_is_there(r);
  };
  for (auto& e : all.entries) {
    next_sequence = std::max(next_sequence, e.sequence + 1);
    if (!e.group) {
      book.erase(e.removal.id);
      keep({e.removal, e.sequence}, e.serial);
      continue;
    }
    // What takes the place of something without a removal, as a crash cut one from the other, stands for it until its
    // own file goes: then there has to be one.
    for (const auto& m : e.group->blocks)
      if (const stored_id id{e.group->ns, m.key}; book.find(id))
        keep({{id, next_serial - 1}, e.sequence - 1}, e.serial);
    book.insert(e.group);
  }
  while (used() > options.limit_bytes)
    if (!co_await clean_one({})) break;
  clean_later();
  co_return error_code();
}

awaitable<std::size_t> file_store::state::count_old_blocks() {
  std::size_t n = 0;
  const auto folder = options.directory + "/blocks";
  auto [ec, namespaces] = co_await files.async_list(folder, as_tuple());
  for (const auto& e : namespaces) {
    if (!e.directory) {
      ++n;
      continue;
    }
    auto [inner_ec, blocks] = co_await files.async_list(folder + "/" + e.name, as_tuple());
    n += blocks.size();
  }
  co_return std::max<std::size_t>(n, 1);
}

// Errors of one file cost that file only.
awaitable<error_code> file_store::state::recover_file(directory_entry entry, found& all) {
  const auto serial = detail::parse_log_file_name(entry.name);
  if (entry.directory || !serial || *serial == 0) {
    ++counters.refused;
    co_return error_code();
  }
  next_serial = std::max(next_serial, *serial + 1);
  const auto path = path_of(*serial);
  auto [open_ec, f] = co_await files.async_open(path, open_mode::read, as_tuple());
  std::vector<std::byte> chunk(detail::log_entry_head);
  auto [head_ec, head_n] =
      open_ec ? std::tuple(open_ec, std::size_t{0}) : co_await detail::read_whole(f, staging, 0, chunk);
  if (head_ec) {
    ++counters.refused;
    co_return error_code();
  }
  chunk.resize(head_n);
  const auto first = detail::read_log_first(chunk, *serial);
  if (!first && (first.error() == errc::not_found || first.error() == errc::digest_mismatch)) {
    // Made just before a crash, or damaged where it says how to read it.
    counters.digest_failures += first.error() == errc::digest_mismatch;
    f.close();
    co_await files.async_remove(path, as_tuple());
    co_return error_code();
  }
  if (!first) {
    ++counters.refused;  // another version, another name than its own: not ours to remove
    co_return error_code();
  }

  said index;
  for (std::uint64_t at = 0, bytes = first->chunk_bytes; bytes != 0;) {
    chunk.resize(static_cast<std::size_t>(bytes));
    auto [ec, n] = co_await detail::read_whole(f, staging, at, chunk);
    if (ec) {
      ++counters.refused;
      co_return error_code();
    }
    std::fill(chunk.begin() + static_cast<std::ptrdiff_t>(n), chunk.end(), std::byte{0});
    const auto part = detail::read_log_chunk(chunk, *serial, at);
    for (const auto& e : part.entries) index.take(e, *serial);
    index.damaged.insert(index.damaged.end(), part.damaged.begin(), part.damaged.end());
    index.sealed = part.sealed;
    at = part.next_at;
    bytes = part.next_bytes;
  }
  for (auto next : index.damaged) counters.digest_failures += index.sealed || next < index.batch;
  co_await keep_whole(f, entry.size, index);
  std::ranges::move(index.entries, std::back_inserter(all.entries));
  book.add_file(*serial, first->carried, entry.size);
  book.seal(*serial);
  co_return error_code();
}

// Leaves out what a crash tore, and what lies behind the end of a file that was cut.
awaitable<void> file_store::state::keep_whole(file& f, std::uint64_t size, said& index) {
  for (const auto& [place, record] : index.last) {
    if (index.sealed || record.digest == digest_algorithm::none) break;
    std::vector<bool> good(record.blocks.size(), true);
    for (std::uint32_t layer = 0; layer < record.extent.layout->layers(); ++layer)
      for (std::size_t i = 0; i < good.size(); ++i) {
        if (!good[i]) continue;
        const auto memory = buffer::host(static_cast<std::size_t>(record.extent.layout->segments[layer]));
        auto [ec, n] = co_await detail::read_whole(f, staging, record.extent.segment_at(layer, record.blocks[i].place),
                                                   memory.bytes());
        good[i] = !ec && n == memory.size() &&
                  digest_of(memory.bytes()) == record.digests[i * record.extent.layout->layers() + layer];
      }
    keep_if(index.entries[place].group, [&](const auto& m) { return good[*record.find(m)]; });
  }
  const auto newest = index.last.empty() ? index.entries.size() : index.last.front().first;
  for (std::size_t i = 0; i < index.entries.size(); ++i) {
    auto& e = index.entries[i];
    if (!e.group) continue;
    e.group = shared_layout(e.group);
    const auto& x = e.group->extent;
    const auto bottom = x.layout->layers() - 1;
    const auto cut = keep_if(
        e.group, [&](const auto& m) { return x.segment_at(bottom, m.place) + x.layout->segments[bottom] <= size; });
    if (index.sealed || i < newest) counters.digest_failures += cut;
  }
  std::erase_if(index.entries, [](const auto& e) { return e.group && e.group->blocks.empty(); });
}

std::shared_ptr<const detail::log_group> file_store::state::shared_layout(
    const std::shared_ptr<const detail::log_group>& group) {
  auto out = std::make_shared<detail::log_group>(*group);
  out->extent.layout = share(out->ns, out->extent.layout);
  return out;
}

}  // namespace cokv

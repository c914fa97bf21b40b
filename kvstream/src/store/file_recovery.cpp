#include "store/file_store_state.hpp"

namespace cokv {

using detail::as_tuple;
using detail::block_file;

awaitable<result<block_file>> file_store::state::read_head(file& f) {
  std::vector<std::byte> bytes(detail::block_file_page);
  auto [ec, n] = co_await detail::read_whole(f, staging, 0, bytes);
  if (ec) co_return ec;
  bytes.resize(n);
  auto offset = detail::block_file_data_offset(bytes);
  if (!offset) co_return offset.error();
  if (bytes.size() < *offset) {  // at most 68 KiB: as many layers as a geometry may have
    auto first = bytes.size();
    bytes.resize(*offset);
    auto [more_ec, more] = co_await detail::read_whole(f, staging, first, std::span(bytes).subspan(first));
    if (more_ec) co_return more_ec;
    bytes.resize(first + more);
  }
  co_return detail::decode_block_file(bytes);
}

awaitable<error_code> file_store::state::recover() {
  auto [made_ec] = co_await files.async_make_directories(options.directory, as_tuple());
  if (made_ec) co_return made_ec;
  auto [lock_ec, held] = co_await files.async_open(lock_path(), open_mode::lock, as_tuple());
  if (lock_ec) co_return lock_ec;
  file_lock = std::move(held);
  for (auto& directory : {blocks_directory(), temporary_directory()}) {
    auto [ec] = co_await files.async_make_directories(directory, as_tuple());
    if (ec) co_return ec;
  }
  auto [top_ec, top] = co_await files.async_list(options.directory, as_tuple());
  if (top_ec) co_return top_ec;
  for (auto& e : top)
    if (e.directory ? e.name != "blocks" && e.name != "tmp" : e.name != "lock") ++counters.refused;

  auto [left_ec, left] = co_await files.async_list(temporary_directory(), as_tuple());
  if (left_ec) co_return left_ec;
  for (auto& e : left) {
    auto [ec] = co_await files.async_remove(temporary_directory() + "/" + e.name, as_tuple());
    if (ec) co_return ec;
  }

  if (direct) {  // known before the first block comes
    const auto path = temporary_directory() + "/direct";
    co_await open_block(path, open_mode::create);
    co_await files.async_remove(path, as_tuple());
  }

  auto [ec, namespaces] = co_await files.async_list(blocks_directory(), as_tuple());
  if (ec) co_return ec;
  for (auto& e : namespaces) {
    auto ns = namespace_id::parse(e.name);
    if (!e.directory || !ns || ns->hex() != e.name) {
      ++counters.refused;
      continue;
    }
    if (auto failed = co_await recover_namespace(blocks_directory() + "/" + e.name, *ns)) co_return failed;
  }
  while (*used > options.limit_bytes) {
    auto id = order.evict();
    if (!id) break;
    drop(find(*id));
    ++counters.evicted_blocks;
  }
  co_return error_code();
}

awaitable<error_code> file_store::state::recover_namespace(std::string directory, namespace_id ns) {
  auto [ec, entries] = co_await files.async_list(directory, as_tuple());
  if (ec) co_return ec;
  co_return co_await detail::for_each_index(entries.size(), operations.available(),
                                            [&](std::size_t i) { return recover_file(directory, ns, entries[i]); });
}

// Errors of one file cost that file only.
awaitable<error_code> file_store::state::recover_file(std::string directory, namespace_id ns, directory_entry entry) {
  auto label = detail::parse_block_file_name(entry.name);
  if (entry.directory || !label) {
    ++counters.refused;
    co_return error_code();
  }
  next_serial = std::max(next_serial, label->serial + 1);
  auto path = directory + "/" + entry.name;
  auto [open_ec, f] = co_await files.async_open(path, open_mode::read, as_tuple());
  if (open_ec) {
    ++counters.refused;
    co_return error_code();
  }
  auto head = co_await read_head(f);
  auto size = f.size();
  f.close();
  bool cut = head && size && *size != head->file_bytes();
  if (cut || (!head && head.error() == errc::digest_mismatch)) {
    ++counters.digest_failures;
    remove_later(path);
  } else if (!head || !size || head->id != detail::stored_id{ns, label->key}) {
    ++counters.refused;  // another version, another name than its own, or unreadable: not ours to remove
  } else {
    // Stored twice by a race, or a replacement, that a crash left undecided: the later one counts.
    if (auto there = find(head->id)) {
      const auto other = detail::parse_block_file_name(there->path.substr(directory.size() + 1));
      if (other && other->serial > label->serial) {
        remove_later(path);
        co_return error_code();
      }
      drop(there);
    }
    auto e = std::make_shared<detail::file_entry>();
    e->id = head->id;
    e->path = path;
    e->layout = share(ns, head->layout);
    e->room = detail::reservation(used, head->file_bytes());
    insert(std::move(e));
  }
  co_return error_code();
}

}  // namespace cokv

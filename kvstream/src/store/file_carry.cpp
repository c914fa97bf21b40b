// What a file that is cleaned held and was asked for, copied into another one.
#include <algorithm>

#include "cokv/kvstream/digest.hpp"
#include "store/file_store_state.hpp"

namespace cokv {

using detail::as_tuple;
using detail::log_book;
using detail::reservation;

awaitable<void> file_store::state::carry(log_book::pass pass, reservation& room) {
  std::span<const log_book::chosen> rest(pass.carry);
  const auto together = [](const log_book::chosen& a, const log_book::chosen& b) {
    return a.group->ns == b.group->ns && a.group->digest == b.group->digest && a.group->tenant == b.group->tenant &&
           (a.group->extent.layout == b.group->extent.layout || *a.group->extent.layout == *b.group->extent.layout);
  };
  while (!rest.empty()) {
    const auto& layout = *rest.front().group->extent.layout;
    const auto& tenant = rest.front().group->tenant;
    const auto most = blocks_a_part(layout, tenant);
    std::size_t n = 1;
    while (n < rest.size() && n < most && together(rest[0], rest[n])) ++n;
    if (bytes_for(layout, n, tenant) > room.bytes()) break;
    // What can't be copied goes with its file.
    co_await carry_group(rest.first(n), pass.carried, room);
    rest = rest.subspan(n);
  }
}

awaitable<error_code> file_store::state::carry_group(std::span<const log_book::chosen> blocks, bool carried,
                                                     reservation& room) {
  std::vector<detail::stored_id> ids;
  for (const auto& b : blocks) ids.push_back(b.id);
  if (auto ec = co_await claim(ids)) co_return ec;
  std::vector<log_book::chosen> wanted;  // still: while it waited some may have been removed or replaced
  for (const auto& b : blocks)
    if (const auto* there = book.find(b.id); there && there->group == b.group) wanted.push_back(b);
  auto copied = co_await copy_blocks(wanted, carried, room);
  if (!copied) unclaim(ids);
  if (!copied) co_return copied.error();
  auto [to, record] = std::move(*copied);
  auto done = std::make_shared<semaphore>(ex, 0);
  auto outcome = std::make_shared<error_code>();
  auto body = encode_log_body(*record);
  auto finished = [this, serial = to.in->serial, record, ids, wanted, done, outcome, bytes = body.size()](
                      error_code ec, std::uint64_t at, std::uint64_t sequence) {
    if (!ec) {
      auto g = detail::make_log_group(*record, serial, at, bytes, sequence);
      std::vector<std::uint8_t> uses;
      for (const auto& m : g->blocks) uses.push_back(book.uses_after(wanted[m.place]));
      book.insert(g, uses);
    }
    *outcome = ec;
    unclaim(ids);
    done->release();
  };
  enter(to.in, {.kind = detail::log_kind::record,
                .body = std::move(body),
                .data_first = record->digest == digest_algorithm::none,
                .sequence = 0,
                .done = std::move(finished)});
  co_await done->async_acquire(1, as_tuple());
  close_extent(to, 0);
  co_return *outcome;
}

// What the disk says of each block's segments; nothing for one whose entry is damaged.
awaitable<std::vector<std::optional<std::vector<std::uint64_t>>>> file_store::state::digests_of(
    file& from, std::span<const log_book::chosen> blocks) {
  std::vector<std::optional<std::vector<std::uint64_t>>> out(blocks.size());
  std::shared_ptr<const detail::log_group> known;
  result<detail::log_record> record = errc::not_found;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto& b = blocks[i];
    if (b.group != known) record = co_await read_record(from, *b.group);
    known = b.group;
    const auto place = record ? record->find(known->blocks[b.member]) : std::nullopt;
    if (!place) continue;
    const auto layers = static_cast<std::ptrdiff_t>(known->extent.layout->layers());
    const auto at = record->digests.begin() + static_cast<std::ptrdiff_t>(*place) * layers;
    out[i].emplace(at, at + layers);
  }
  co_return out;
}

// Layer by layer, as many blocks at a time as staging takes; those that are damaged are left out.
awaitable<result<std::pair<file_store::state::extent, std::shared_ptr<detail::log_record>>>>
file_store::state::copy_blocks(std::span<const log_book::chosen> blocks, bool carried, reservation& room) {
  if (blocks.empty()) co_return errc::not_found;
  const auto& like = *blocks.front().group;
  auto record = std::make_shared<detail::log_record>();
  record->ns = like.ns;
  record->digest = like.digest;
  record->tenant = like.tenant;
  record->extent.layout = like.extent.layout;
  record->extent.alignment = alignment();
  record->extent.places = static_cast<std::uint32_t>(blocks.size());
  auto [open_ec, from] = co_await open_log(like.serial);
  if (open_ec) co_return open_ec;
  auto digests = co_await digests_of(*from, blocks);
  auto [ec, to] = co_await open_extent(carried, record->extent.bytes(), room);
  if (ec) co_return ec;
  record->extent.at = to.at;

  error_code failed;
  for (std::uint32_t layer = 0; layer < like.extent.layout->layers() && !failed; ++layer) {
    const auto stride = static_cast<std::size_t>(record->extent.stride(layer));
    const auto at_once = std::max<std::size_t>(detail::staging_pieces::piece_bytes / stride, 1);
    for (std::size_t first = 0; first < blocks.size() && !failed; first += at_once) {
      const auto n = std::min(at_once, blocks.size() - first);
      failed = co_await copy_run(*from, *to.in->open, *record, layer, blocks.subspan(first, n), first,
                                 std::span(digests).subspan(first, n));
    }
  }
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    if (!digests[i]) continue;
    record->blocks.push_back({blocks[i].id.key, i});
    record->digests.insert(record->digests.end(), digests[i]->begin(), digests[i]->end());
  }
  if (!failed && record->blocks.empty()) failed = errc::digest_mismatch;
  if (failed) {
    close_extent(to, record->extent.bytes());
    co_return failed;
  }
  co_return std::pair(std::move(to), std::move(record));
}

awaitable<error_code> file_store::state::copy_run(file& from, file& to, const detail::log_record& record,
                                                  std::uint32_t layer, std::span<const log_book::chosen> blocks,
                                                  std::size_t first,
                                                  std::span<std::optional<std::vector<std::uint64_t>>> digests) {
  auto [wait_ec, admitted] = co_await admit();
  if (wait_ec) co_return wait_ec;
  const auto size = static_cast<std::size_t>(record.extent.layout->segments[layer]);
  const auto stride = static_cast<std::size_t>(record.extent.stride(layer));
  const auto memory = buffer::host(blocks.size() * stride, detail::log_page);
  const auto part = [&](std::size_t i) { return memory.bytes().subspan(i * stride, size); };
  const auto place = [&](std::size_t i) { return blocks[i].group->blocks[blocks[i].member].place; };
  for (std::size_t i = 0, n = 1; i < blocks.size(); i += n) {
    // Those that lie together are read together.
    std::vector<asio::mutable_buffer> pieces{asio::buffer(part(i).data(), size)};
    for (n = 1; i + n < blocks.size() && blocks[i + n].group == blocks[i].group && place(i + n) == place(i) + n; ++n)
      pieces.emplace_back(part(i + n).data(), size);
    const auto& x = blocks[i].group->extent;
    auto [ec, whole] =
        co_await detail::read_run(from, staging, x.segment_at(layer, place(i)), x.stride(layer), std::move(pieces));
    for (auto k = i; k < i + n; ++k) {
      const bool sealed = record.digest != digest_algorithm::none;
      const bool good = !ec && k - i < whole && digests[k] && (!sealed || digest_of(part(k)) == (*digests[k])[layer]);
      if (good || !digests[k]) continue;
      digests[k].reset();
      if (!ec) ++counters.digest_failures;
    }
  }
  std::vector<asio::const_buffer> pieces;
  for (std::size_t i = 0; i < blocks.size(); ++i) pieces.emplace_back(part(i).data(), size);
  co_return co_await detail::write_run(to, staging, record.extent.segment_at(layer, static_cast<std::uint32_t>(first)),
                                       stride, std::move(pieces), record.extent.alignment);
}

}  // namespace cokv

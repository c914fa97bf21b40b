#include "support/store_promises.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "cokv/runtime/clock.hpp"

namespace cokv::test::promises {

awaitable<std::size_t> match(cokv::store& s, namespace_id ns, std::uint32_t first, std::uint32_t count) {
  auto [ec, n] = co_await s.async_match(ns, contract_keys(first, count), as_tuple());
  CHECK(!ec);
  co_return n;
}

awaitable<void> written_is_read(cokv::store& s) {
  CHECK(co_await match(s, ns_a, 0, 4) == 0);
  CHECK(!co_await write_blocks(s, ns_a, 0, 4));
  CHECK(co_await match(s, ns_a, 0, 4) == 4);
  CHECK(co_await match(s, ns_a, 0, 6) == 4);
  CHECK(co_await match(s, ns_a, 2, 1) == 1);
  CHECK(co_await read_blocks(s, ns_a, 0, 4) == 4);
  CHECK(co_await read_blocks(s, ns_a, 0, 6) == 4);
  CHECK(co_await read_blocks(s, ns_a, 3, 1) == 1);
  CHECK(co_await match(s, ns_a, 0, 0) == 0);
}

awaitable<void> prefix_ends_at_a_hole(cokv::store& s) {
  CHECK(!co_await write_blocks(s, ns_a, 0, 2));
  CHECK(!co_await write_blocks(s, ns_a, 3, 2));
  CHECK(co_await match(s, ns_a, 0, 5) == 2);
  CHECK(co_await read_blocks(s, ns_a, 0, 5) == 2);
  CHECK(co_await read_blocks(s, ns_a, 2, 3) == 0);
  CHECK(co_await match(s, ns_a, 3, 2) == 2);
}

awaitable<void> names_keep_apart(cokv::store& s) {
  CHECK(!co_await write_blocks(s, ns_a, 0, 2));
  CHECK(co_await match(s, ns_b, 0, 2) == 0);
  CHECK(co_await read_blocks(s, ns_b, 0, 2) == 0);
  auto other = contract_layout();
  other.segments[1] += 8;
  auto [ec, reader] = co_await s.async_open_read(ns_a, other, contract_keys(0, 2), as_tuple());
  if (!ec) {
    std::vector<buffer> into{buffer::host(other.segments[0]), buffer::host(other.segments[0])};
    auto [read_ec, good] = co_await reader->async_read(0, into, as_tuple());
    CHECK((read_ec || good == 0));
  }
}

awaitable<void> nothing_shows_before_the_commit(cokv::store& s) {
  auto layout = contract_layout();
  {
    auto [ec, writer] = co_await s.async_open_write(ns_a, layout, contract_keys(0, 2), {}, as_tuple());
    CHECK(!ec);
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
      auto [write_ec] = co_await writer->async_write(layer, contract_segments(0, 2, layer), as_tuple());
      CHECK(!write_ec);
      CHECK(co_await match(s, ns_a, 0, 2) == 0);
    }
  }
  CHECK(co_await match(s, ns_a, 0, 2) == 0);
  CHECK(co_await read_blocks(s, ns_a, 0, 2) == 0);
  CHECK(!co_await write_blocks(s, ns_a, 0, 2));  // and what was left behind is in nobody's way
  CHECK(co_await read_blocks(s, ns_a, 0, 2) == 2);
}

awaitable<void> a_commit_wants_all_layers(cokv::store& s) {
  auto layout = contract_layout();
  auto [ec, writer] = co_await s.async_open_write(ns_a, layout, contract_keys(0, 1), {}, as_tuple());
  CHECK(!ec);
  auto [first_ec] = co_await writer->async_write(0, contract_segments(0, 1, 0), as_tuple());
  CHECK(!first_ec);
  auto [commit_ec] = co_await writer->async_commit(as_tuple());
  CHECK(commit_ec == errc::invalid_argument);
  writer.reset();
  CHECK(co_await match(s, ns_a, 0, 1) == 0);
}

awaitable<void> layers_are_written_in_order(cokv::store& s) {
  auto layout = contract_layout();
  auto [ec, writer] = co_await s.async_open_write(ns_a, layout, contract_keys(0, 2), {}, as_tuple());
  CHECK(!ec);
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    auto [write_ec] = co_await writer->async_write(layer, contract_segments(0, 2, layer), as_tuple());
    CHECK(!write_ec);
    auto [again] = co_await writer->async_write(layer, contract_segments(0, 2, layer), as_tuple());
    CHECK(again == errc::invalid_argument);  // each once; the writer goes on
  }
  auto [commit_ec] = co_await writer->async_commit(as_tuple());
  CHECK(!commit_ec);
  auto [closed] = co_await writer->async_commit(as_tuple());
  CHECK(closed == errc::closed);
  CHECK(co_await read_blocks(s, ns_a, 0, 2) == 2);
}

awaitable<void> a_reader_may_stop_early_or_skip(cokv::store& s) {
  CHECK(!co_await write_blocks(s, ns_a, 0, 2));
  auto layout = contract_layout();
  auto [ec, reader] = co_await s.async_open_read(ns_a, layout, contract_keys(0, 2), as_tuple());
  CHECK(!ec);
  std::vector<buffer> into{buffer::host(layout.segments[0]), buffer::host(layout.segments[0])};
  auto [read_ec, good] = co_await reader->async_read(0, into, as_tuple());
  CHECK(!read_ec);
  CHECK(good == 2);
  auto [back_ec, none] = co_await reader->async_read(0, into, as_tuple());
  CHECK(back_ec == errc::invalid_argument);  // layers in order
  CHECK(none == 0);
  reader.reset();
  auto ahead = co_await s.async_open_read(ns_a, layout, contract_keys(0, 2), asio::deferred);
  std::vector<std::vector<buffer>> layers;
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    layers.push_back({buffer::host(layout.segments[layer]), buffer::host(layout.segments[layer])});
    ahead->expect(layer, layers.back());
  }
  CHECK(co_await ahead->async_read(2, layers[2], asio::deferred) == 2);
  CHECK(layers[2][1].data()[5] == contract_byte(1, 2, 5));
  auto [early_ec, nothing] = co_await ahead->async_read(1, layers[1], as_tuple());
  CHECK(early_ec == errc::invalid_argument);
  CHECK(co_await ahead->async_read(3, layers[3], asio::deferred) == 2);
  CHECK(layers[3][0].data()[19999] == contract_byte(0, 3, 19999));
  CHECK(co_await read_blocks(s, ns_a, 0, 2) == 2);
}

awaitable<void> removed_is_gone(cokv::store& s) {
  CHECK(!co_await write_blocks(s, ns_a, 0, 3));
  auto [ec] = co_await s.async_remove(ns_a, contract_keys(1, 1)[0], as_tuple());
  CHECK(!ec);
  CHECK(co_await match(s, ns_a, 0, 3) == 1);
  CHECK(co_await read_blocks(s, ns_a, 0, 3) == 1);
  auto [again] = co_await s.async_remove(ns_a, contract_keys(1, 1)[0], as_tuple());
  CHECK(again == errc::not_found);
  auto [foreign] = co_await s.async_remove(ns_b, contract_keys(0, 1)[0], as_tuple());
  CHECK(foreign == errc::not_found);
  CHECK(!co_await write_blocks(s, ns_a, 1, 1));
  CHECK(co_await read_blocks(s, ns_a, 0, 3) == 3);
}

awaitable<void> blocks_never_change(cokv::store& s) {
  CHECK(!co_await write_blocks(s, ns_a, 0, 2));
  auto before = s.info().used_bytes;
  CHECK(!co_await write_blocks(s, ns_a, 0, 3));  // two are there, one is new
  CHECK(co_await read_blocks(s, ns_a, 0, 3) == 3);
  if (before) CHECK(s.info().used_bytes * 2 == before * 3);

  auto layout = contract_layout();
  auto [ec, writer] = co_await s.async_open_write(ns_a, layout, contract_keys(0, 1), {}, as_tuple());
  CHECK(!ec);
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    auto [write_ec] = co_await writer->async_write(layer, contract_segments(77, 1, layer), as_tuple());
    CHECK(!write_ec);
  }
  auto [commit_ec] = co_await writer->async_commit(as_tuple());
  CHECK(!commit_ec);
  CHECK(co_await read_blocks(s, ns_a, 0, 1) == 1);  // what was there first
}

// Writes under a key what belongs to another.
awaitable<error_code> replace(cokv::store& s, std::uint32_t key, std::uint32_t with, write_options options) {
  const auto layout = contract_layout();
  auto [ec, writer] = co_await s.async_open_write(ns_a, layout, contract_keys(key, 1), options, as_tuple());
  if (ec) co_return ec;
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    auto [write_ec] = co_await writer->async_write(layer, contract_segments(with, 1, layer), as_tuple());
    CHECK(!write_ec);
  }
  CHECK(co_await match(s, ns_a, key, 1) == 1);  // what was there, until the commit
  auto [commit_ec] = co_await writer->async_commit(as_tuple());
  co_return commit_ec;
}

// How many layers of a block are there, all of them with the bytes of `with`.
awaitable<std::uint32_t> read_as(block_reader& reader, std::uint32_t with) {
  const auto layout = contract_layout();
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    const auto want = contract_segments(with, 1, layer)[0];
    const auto into = buffer::host(layout.segments[layer]);
    auto [ec, good] = co_await reader.async_read(layer, {into}, as_tuple());
    if (ec || good == 0) co_return layer;
    CHECK(std::memcmp(into.data(), want.data(), want.size()) == 0);
  }
  co_return layout.layers();
}

awaitable<void> a_forced_write_replaces(cokv::store& s) {
  const auto layout = contract_layout();
  CHECK(!co_await write_blocks(s, ns_a, 0, 3));
  const auto before = s.info().used_bytes;
  auto [old_ec, old] = co_await s.async_open_read(ns_a, layout, contract_keys(1, 1), as_tuple());
  CHECK(!old_ec);
  CHECK(!co_await replace(s, 1, 77, {.force = true}));
  co_await read_as(*old, 1);  // the old bytes or fewer layers, never the new ones
  old.reset();
  CHECK(co_await match(s, ns_a, 0, 3) == 3);
  auto [ec, reader] = co_await s.async_open_read(ns_a, layout, contract_keys(1, 1), as_tuple());
  CHECK(!ec);
  CHECK(co_await read_as(*reader, 77) == layout.layers());
  reader.reset();
  if (before) CHECK(s.info().used_bytes == before);
  CHECK(!co_await replace(s, 1, 55, {}));  // without force nothing changes
  auto [again_ec, again] = co_await s.async_open_read(ns_a, layout, contract_keys(1, 1), as_tuple());
  CHECK(!again_ec);
  CHECK(co_await read_as(*again, 77) == layout.layers());
  again.reset();

  {  // given up: what is there stays
    auto [open_ec, writer] =
        co_await s.async_open_write(ns_a, layout, contract_keys(0, 1), {.force = true}, as_tuple());
    CHECK(!open_ec);
  }
  CHECK(co_await read_blocks(s, ns_a, 0, 1) == 1);

  auto [other_ec, other] = co_await s.async_open_write(ns_a, {{8}}, contract_keys(2, 1), {.force = true}, as_tuple());
  CHECK(!other_ec);
  auto [write_ec] = co_await other->async_write(0, {buffer::host(8)}, as_tuple());
  CHECK(!write_ec);
  auto [commit_ec] = co_await other->async_commit(as_tuple());
  CHECK(!commit_ec);
  CHECK(co_await read_blocks(s, ns_a, 2, 1) == 0);
  auto [layout_ec, of_other] = co_await s.async_open_read(ns_a, {{8}}, contract_keys(2, 1), as_tuple());
  CHECK(!layout_ec);
  CHECK(of_other->found() == 1);
}

awaitable<void> bad_requests_are_refused(cokv::store& s) {
  auto layout = contract_layout();
  auto keys = contract_keys(0, 2);
  auto open_write = [&](block_layout l, std::vector<block_key> k) -> awaitable<error_code> {
    auto [ec, writer] = co_await s.async_open_write(ns_a, std::move(l), std::move(k), {}, as_tuple());
    CHECK(!writer == !!ec);
    co_return ec;
  };
  CHECK(co_await open_write(layout, {}) == errc::invalid_argument);
  CHECK(co_await open_write({}, keys) == errc::invalid_argument);
  CHECK(co_await open_write({{8, 0}}, keys) == errc::invalid_argument);
  CHECK(co_await open_write(layout, {keys[0], keys[0]}) == errc::invalid_argument);
  CHECK(co_await open_write({{geometry::max_segment_bytes + 1}}, keys) == errc::too_large);
  CHECK(co_await open_write({std::vector<std::uint64_t>(geometry::max_layers + 1, 8)}, keys) == errc::too_large);
  auto [read_ec, no_reader] = co_await s.async_open_read(ns_a, layout, {}, as_tuple());
  CHECK(read_ec == errc::invalid_argument);

  auto [ec, writer] = co_await s.async_open_write(ns_a, layout, keys, {}, as_tuple());
  CHECK(!ec);
  auto [one_short] = co_await writer->async_write(0, contract_segments(0, 1, 0), as_tuple());
  CHECK(one_short == errc::invalid_argument);
  auto [wrong_size] = co_await writer->async_write(0, contract_segments(0, 2, 2), as_tuple());
  CHECK(wrong_size == errc::invalid_argument);
  auto [no_layer] = co_await writer->async_write(99, contract_segments(0, 2, 0), as_tuple());
  CHECK(no_layer == errc::out_of_range);

  CHECK(!co_await write_blocks(s, ns_a, 5, 2));
  auto [open_ec, reader] = co_await s.async_open_read(ns_a, layout, contract_keys(5, 2), as_tuple());
  CHECK(!open_ec);
  auto [short_ec, a] = co_await reader->async_read(0, {buffer::host(layout.segments[0])}, as_tuple());
  CHECK(short_ec == errc::invalid_argument);
  auto [range_ec, b] = co_await reader->async_read(99, {}, as_tuple());
  CHECK(range_ec == errc::out_of_range);
}

awaitable<void> two_writers_of_a_key(cokv::store& s) {
  auto layout = contract_layout();
  auto [a_ec, a] = co_await s.async_open_write(ns_a, layout, contract_keys(0, 2), {}, as_tuple());
  auto [b_ec, b] = co_await s.async_open_write(ns_a, layout, contract_keys(1, 2), {}, as_tuple());
  CHECK(!a_ec);
  CHECK(!b_ec);
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    auto [one] = co_await a->async_write(layer, contract_segments(0, 2, layer), as_tuple());
    auto [two] = co_await b->async_write(layer, contract_segments(1, 2, layer), as_tuple());
    CHECK(!one);
    CHECK(!two);
  }
  auto [b_done] = co_await b->async_commit(as_tuple());
  auto [a_done] = co_await a->async_commit(as_tuple());
  CHECK(!a_done);
  CHECK(!b_done);
  a.reset();
  b.reset();
  CHECK(co_await read_blocks(s, ns_a, 0, 3) == 3);
}

awaitable<void> deferred_comes_to_be(cokv::store& s) {
  CHECK(!co_await write_blocks(s, ns_a, 0, 3, {.deferred = true}));
  auto& time = clock::of(s.get_executor());
  const auto limit = time.now() + std::chrono::seconds(30);
  while (co_await match(s, ns_a, 0, 3) < 3 && time.now() < limit)
    co_await time.async_wait_for(std::chrono::microseconds(100), asio::deferred);
  CHECK(co_await read_blocks(s, ns_a, 0, 3) == 3);
}

}  // namespace cokv::test::promises

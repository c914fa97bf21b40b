#include "support/store_contract.hpp"

#include <doctest/doctest.h>

#include <boost/asio/use_future.hpp>
#include <cstring>
#include <map>
#include <random>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::test {
namespace {

auto as_tuple() { return asio::as_tuple(asio::deferred); }

const namespace_id ns_a = namespace_id::of("model a", geometry::attention(3, 2, 4, dtype::f32));
const namespace_id ns_b = namespace_id::of("model b", geometry::attention(3, 2, 4, dtype::f32));

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

awaitable<void> the_limit_holds(cokv::store& s, std::uint64_t limit) {
  for (std::uint32_t first = 0; first < 200; first += 5) {
    CHECK(!co_await write_blocks(s, ns_a, first, 5));
    CHECK(s.info().used_bytes <= limit);
    CHECK(co_await read_blocks(s, ns_a, first, 5) == 5);  // what just came is there
  }
  CHECK(s.info().evicted_blocks > 0);
  CHECK(s.info().blocks >= 5);
  CHECK(co_await match(s, ns_a, 0, 5) < 5);
  auto [ec, writer] = co_await s.async_open_write(ns_a, contract_layout(), contract_keys(1000, 1000), {}, as_tuple());
  CHECK(ec == errc::too_large);
  CHECK(co_await match(s, ns_a, 195, 5) == 5);  // refused before anything was given up for it
}

awaitable<void> what_is_read_is_kept(cokv::store& s) {
  auto layout = contract_layout();
  CHECK(!co_await write_blocks(s, ns_a, 0, 6));
  auto [ec, reader] = co_await s.async_open_read(ns_a, layout, contract_keys(0, 6), as_tuple());
  CHECK(!ec);
  for (std::uint32_t first = 100; first < 160; first += 2) CHECK(!co_await write_blocks(s, ns_a, first, 2));
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    std::vector<buffer> into;
    for (int i = 0; i < 6; ++i) into.push_back(buffer::host(layout.segments[layer]));
    auto [read_ec, good] = co_await reader->async_read(layer, into, as_tuple());
    CHECK(!read_ec);
    CHECK(good == 6);
  }
  // All room is in use: what is read and what is being written.
  auto [full, none] = co_await s.async_open_write(ns_a, layout, contract_keys(200, 7), {}, as_tuple());
  CHECK(full == errc::store_full);
  reader.reset();
  CHECK(!co_await write_blocks(s, ns_a, 200, 7));
}

awaitable<void> agrees_with_a_model(cokv::store& s, unsigned seed, std::size_t rounds) {
  std::mt19937 random(seed);
  auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::map<std::pair<int, std::uint32_t>, bool> there;
  for (std::size_t round = 0; round < rounds; ++round) {
    int which = static_cast<int>(below(2));
    auto ns = which ? ns_b : ns_a;
    auto first = below(12), count = 1 + below(5);
    auto leading = [&] {
      std::size_t n = 0;
      while (n < count && there[{which, first + n}]) ++n;
      return n;
    };
    switch (below(4)) {
      case 0:
        CHECK(!co_await write_blocks(s, ns, first, count));
        for (std::uint32_t i = 0; i < count; ++i) there[{which, first + i}] = true;
        break;
      case 1:
        CHECK(co_await match(s, ns, first, count) == leading());
        break;
      case 2:
        CHECK(co_await read_blocks(s, ns, first, count) == leading());
        break;
      case 3: {
        auto [ec] = co_await s.async_remove(ns, contract_keys(first, 1)[0], as_tuple());
        CHECK((ec == errc::not_found) == !there[{which, first}]);
        there[{which, first}] = false;
      }
    }
  }
}

awaitable<void> one_of_everything(cokv::store& s) {
  co_await write_blocks(s, ns_a, 0, 2);
  co_await write_blocks(s, ns_a, 1, 2, {.deferred = true});
  co_await read_blocks(s, ns_a, 0, 3);
  co_await s.async_remove(ns_a, contract_keys(0, 1)[0], as_tuple());
}

}  // namespace

block_layout contract_layout() { return {{1000, 1000, 24, 20000}}; }

std::vector<block_key> contract_keys(std::uint32_t first, std::uint32_t count) {
  std::vector<block_key> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    auto n = static_cast<std::int32_t>(first + i);
    out.push_back(chain(root_key("contract"), {&n, 1}));
  }
  return out;
}

std::byte contract_byte(std::uint32_t key, std::uint32_t layer, std::size_t at) {
  return static_cast<std::byte>(key * 41 + layer * 7 + at * 3 + at / 256);
}

std::vector<buffer> contract_segments(std::uint32_t first, std::uint32_t count, std::uint32_t layer) {
  std::vector<buffer> out;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto n = contract_layout().segments[layer];
    const std::size_t odd = (first + i) % 2;
    out.push_back(buffer::host(n + odd).slice(odd, n));
    for (std::size_t at = 0; at < out.back().size(); ++at) out.back().data()[at] = contract_byte(first + i, layer, at);
  }
  return out;
}

awaitable<error_code> write_blocks(cokv::store& s, namespace_id ns, std::uint32_t first, std::uint32_t count,
                                   write_options options) {
  auto layout = contract_layout();
  auto [ec, writer] = co_await s.async_open_write(ns, layout, contract_keys(first, count), options, as_tuple());
  if (ec) co_return ec;
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    auto segments = contract_segments(first, count, layer);
    auto [write_ec] = co_await writer->async_write(layer, segments, as_tuple());
    if (write_ec) co_return write_ec;
    for (auto& b : segments) std::memset(b.data(), 0xdd, b.size());  // it is the caller's again
  }
  auto [commit_ec] = co_await writer->async_commit(as_tuple());
  co_return commit_ec;
}

awaitable<std::size_t> read_blocks(cokv::store& s, namespace_id ns, std::uint32_t first, std::uint32_t count) {
  auto layout = contract_layout();
  auto [ec, reader] = co_await s.async_open_read(ns, layout, contract_keys(first, count), as_tuple());
  if (ec) co_return 0;
  std::vector<std::vector<buffer>> layers(layout.layers());
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    for (std::uint32_t i = 0; i < count; ++i) {
      layers[layer].push_back(buffer::host(layout.segments[layer]));
      std::memset(layers[layer].back().data(), 0xee, layout.segments[layer]);
    }
    // None, some or all of them are told of beforehand; what is no use as a hint does no harm.
    if (layer < (first + count) % (layout.layers() + 1)) reader->expect(layer, layers[layer]);
    if (layer == 1) reader->expect(0, layers[0]);
    if (layer == 2) reader->expect(layer, {});
  }
  std::size_t good = count;
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    const auto& into = layers[layer];
    // At once where that can be, for some.
    const auto there = (first + layer) % 3 == 0 ? reader->read_now(layer, into)
                                                : result<std::size_t>(error_code(asio::error::would_block));
    auto n = there ? *there : 0;
    auto read_ec = there ? error_code() : there.error();
    if (read_ec == asio::error::would_block)
      std::tie(read_ec, n) = co_await reader->async_read(layer, into, as_tuple());
    if (read_ec) co_return 0;
    CHECK(n <= good);
    good = std::min(good, n);
    bool same = true;
    for (std::uint32_t i = 0; i < good; ++i)
      for (std::size_t at = 0; at < into[i].size(); ++at)
        same = same && into[i].data()[at] == contract_byte(first + i, layer, at);
    CHECK(same);
  }
  co_return good;
}

void store_contract(const store_maker& make, const contract_options& options) {
  auto with_store = [&](auto body, std::uint64_t limit) {
    return [&make, body, limit](asio::any_io_executor ex) -> awaitable<void> {
      auto made = co_await make(ex, limit);
      co_await body(*made.store);
    };
  };
  auto promise = [&](auto body, std::uint64_t limit = std::uint64_t{1} << 26) {
    co_test(with_store(body, limit), options.run);
  };
  SUBCASE("what is written is read, byte for byte") { promise(written_is_read); }
  SUBCASE("a prefix ends at a hole") { promise(prefix_ends_at_a_hole); }
  SUBCASE("another namespace or layout finds nothing") { promise(names_keep_apart); }
  SUBCASE("nothing shows before the commit") { promise(nothing_shows_before_the_commit); }
  SUBCASE("a commit wants all layers") { promise(a_commit_wants_all_layers); }
  SUBCASE("a layer is written once") { promise(layers_are_written_in_order); }
  SUBCASE("a reader goes forward and may stop early") { promise(a_reader_may_stop_early_or_skip); }
  SUBCASE("what is removed is gone") { promise(removed_is_gone); }
  SUBCASE("blocks never change") { promise(blocks_never_change); }
  SUBCASE("a forced write takes the place of what is there") { promise(a_forced_write_replaces); }
  SUBCASE("bad requests are refused") { promise(bad_requests_are_refused); }
  SUBCASE("two writers of a key both succeed") { promise(two_writers_of_a_key); }
  SUBCASE("deferred writes come to be") { promise(deferred_comes_to_be); }
  SUBCASE("random operations agree with a model of truth") {
    for (unsigned seed = 1; seed <= 3; ++seed)
      promise([seed, rounds = options.rounds](cokv::store& s) { return agrees_with_a_model(s, seed, rounds); });
  }
  if (options.has_limit) {
    SUBCASE("the limit holds, and what is old makes room") {
      auto limit = 12 * options.block_bytes;
      promise([limit](cokv::store& s) { return the_limit_holds(s, limit); }, limit);
    }
    SUBCASE("what is being read is not given up") { promise(what_is_read_is_kept, 9 * options.block_bytes); }
  }
  if (options.every_step) {
    SUBCASE("cancelled at every step") { cancel_at_every_step(with_store(one_of_everything, 1 << 26), options.run); }
    SUBCASE("destroyed at every step") { destroy_at_every_step(with_store(one_of_everything, 1 << 26), options.run); }
  }
  SUBCASE("any completion token") {
    asio::io_context ctx(1);
    auto work = asio::make_work_guard(ctx);
    stored made;
    asio::co_spawn(ctx, make(ctx.get_executor(), 1 << 26), [&](std::exception_ptr e, stored s) {
      CHECK(!e);
      made = std::move(s);
    });
    while (!made.store) ctx.run_one();
    auto& s = *made.store;
    auto future = s.async_match(ns_a, contract_keys(0, 1), asio::use_future);
    int called = 0;
    s.async_match(ns_a, contract_keys(0, 1), [&](error_code ec, std::size_t n) {
      CHECK(!ec);
      CHECK(n == 0);
      ++called;
    });
    CHECK(called == 0);  // never inside the initiating function
    auto later = s.async_open_read(ns_a, contract_layout(), contract_keys(0, 1));
    std::move(later)([&](error_code ec, std::unique_ptr<block_reader>) {
      CHECK(!ec);
      ++called;
    });
    while (called < 2) ctx.run_one();
    while (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) ctx.run_one();
    CHECK(future.get() == 0);
    asio::co_spawn(
        ctx,
        [&]() -> awaitable<void> {
          CHECK(co_await s.async_match(ns_a, contract_keys(0, 1), asio::use_awaitable) == 0);
          ++called;
        },
        asio::detached);
    while (called < 3) ctx.run_one();
  }
}

}  // namespace cokv::test

// What store_contract() goes through, one promise each.
#pragma once

#include "cokv/runtime/error.hpp"
#include "support/store_contract.hpp"

namespace cokv::test::promises {

inline auto as_tuple() { return asio::as_tuple(asio::deferred); }

inline const namespace_id ns_a = namespace_id::of("model a", geometry::attention(3, 2, 4, dtype::f32));
inline const namespace_id ns_b = namespace_id::of("model b", geometry::attention(3, 2, 4, dtype::f32));

awaitable<std::size_t> match(cokv::store& s, namespace_id ns, std::uint32_t first, std::uint32_t count);

awaitable<void> written_is_read(cokv::store& s);
awaitable<void> prefix_ends_at_a_hole(cokv::store& s);
awaitable<void> names_keep_apart(cokv::store& s);
awaitable<void> nothing_shows_before_the_commit(cokv::store& s);
awaitable<void> a_commit_wants_all_layers(cokv::store& s);
awaitable<void> layers_are_written_in_order(cokv::store& s);
awaitable<void> a_reader_may_stop_early_or_skip(cokv::store& s);
awaitable<void> removed_is_gone(cokv::store& s);
awaitable<void> blocks_never_change(cokv::store& s);
awaitable<void> a_forced_write_replaces(cokv::store& s);
awaitable<void> bad_requests_are_refused(cokv::store& s);
awaitable<void> two_writers_of_a_key(cokv::store& s);
awaitable<void> deferred_comes_to_be(cokv::store& s);

}  // namespace cokv::test::promises

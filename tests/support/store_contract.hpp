// What every store promises, as tests that take a maker of stores. Call it from a TEST_CASE of the store's own:
//
//     TEST_CASE("memory store: the contract") {
//       store_contract([](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> { ... });
//     }
//
// A maker gives a new, empty store of that limit, and what must live as long (a server, a folder).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cokv/kvstream/store.hpp"
#include "support/co_test.hpp"

namespace cokv::test {

struct stored {
  std::unique_ptr<cokv::store> store;
  std::shared_ptr<void> keep;
};
using store_maker = std::function<awaitable<stored>(asio::any_io_executor, std::uint64_t limit_bytes)>;

// The layout of the blocks that the tests write.
block_layout contract_layout();

struct contract_options {
  co_options run;
  bool has_limit = true;    // holds used_bytes under the limit and says too_large, store_full when it opens a writer
  bool every_step = true;   // cancelled and destroyed after each number of steps
  std::size_t rounds = 40;  // of the random operations, a seed
  std::uint64_t block_bytes = contract_layout().bytes() + 4200;  // what a block takes of the limit, at most
};

void store_contract(const store_maker& make, const contract_options& options = {});

// Their content is a function of key, layer and version; every other one lies at an odd address.
std::vector<block_key> contract_keys(std::uint32_t first, std::uint32_t count);
std::byte contract_byte(std::uint32_t key, std::uint32_t layer, std::size_t at);
std::vector<buffer> contract_segments(std::uint32_t first, std::uint32_t count, std::uint32_t layer);

// Coroutines for tests: write blocks [first, first + count) and commit; read them, and how many leading ones are good,
// after comparing every good byte.
awaitable<error_code> write_blocks(cokv::store& s, namespace_id ns, std::uint32_t first, std::uint32_t count,
                                   write_options options = {});
awaitable<std::size_t> read_blocks(cokv::store& s, namespace_id ns, std::uint32_t first, std::uint32_t count);

}  // namespace cokv::test

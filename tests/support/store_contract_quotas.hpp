// What stores with quotas promise, as a test that takes a new, empty store with room for many blocks.
#pragma once

#include <functional>

#include "support/store_contract.hpp"

namespace cokv::test {

// `set_quotas` is the store's; each block of contract_layout() takes `block_bytes` of a quota.
awaitable<void> quota_contract(cokv::store& s, std::function<void(const tenant_quotas&)> set_quotas,
                               std::uint64_t block_bytes);

}  // namespace cokv::test

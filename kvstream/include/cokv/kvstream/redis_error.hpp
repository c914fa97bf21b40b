// What Redis answers when it does not do what it was asked, as error_codes with a text of their own. "OOM" is what it says
// at its maxmemory; where a store's table says store_full, it is that.
//
//     if (ec == cokv::redis_errc::loading) ...          // the node has restarted, and will be back
#pragma once

#include "cokv/runtime/asio.hpp"

namespace cokv {

enum class redis_errc {
  out_of_memory = 1,  // OOM
  read_only,          // READONLY
  loading,            // LOADING
  cluster_down,       // CLUSTERDOWN: nobody serves the slot
  try_again,          // TRYAGAIN, for longer than it was tried
  master_down,        // MASTERDOWN
  busy,               // BUSY
  not_writable,       // MISCONF, NOREPLICAS
  no_password,        // NOAUTH
  wrong_password,     // WRONGPASS
  no_permission,      // NOPERM
  refused,            // any other error
};

const boost::system::error_category& redis_category() noexcept;
inline error_code make_error_code(redis_errc e) noexcept { return {static_cast<int>(e), redis_category()}; }

}  // namespace cokv

template <>
struct boost::system::is_error_code_enum<cokv::redis_errc> : std::true_type {};

// Memory of another worker in which this one keeps some layers of its KV: where it is to be asked for, and what was given.
//
//     auto mine = co_await borrow(prefill, windows, bytes);              // result<loan>
//     engine.lend(mine->memory(), mine->memory_to());
//     co_await mine->link.async_closed();                                // it is lent no more
//
// A loan ends with its link: the lender then frees the memory. Nobody keeps what was written there.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "cluster/fields.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "http/client.hpp"

namespace cokv::cluster {

struct loan_terms {
  std::string id, life;            // of the loan; of the lender
  std::vector<std::string> links;  // the lender's doors, any of which will do
  window_ref window;
};
boost::json::object to_json(const loan_terms& t);
parsed<loan_terms> read_loan(const boost::json::value& v);

struct loan {
  peer_link link;
  window_ref window;
  source memory() const { return link.from(window); }
  sink memory_to() const { return link.to(window); }
};

// What could be lent there now, in bytes. errc::unsupported: it lends nothing; the client's.
awaitable<result<std::uint64_t>> lendable(http::client& from);
// errc::out_of_memory: it has not so much; errc::unavailable: its device, at the moment; errc::permission_denied; the client's
// and the link's.
awaitable<result<loan>> borrow(http::client& from, window_table windows, std::uint64_t bytes);

}  // namespace cokv::cluster

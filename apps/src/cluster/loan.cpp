#include "cluster/loan.hpp"

#include <boost/json/serialize.hpp>

#include "cluster/ticket.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace json = boost::json;
namespace {

using namespace std::chrono_literals;

parsed<window_ref> read_window(const json::value& v) {
  constexpr auto any = std::numeric_limits<std::uint64_t>::max();
  fields f(v, "window");
  const window_ref w{f.number("id", any), f.number("generation", any), f.number("size", any, 1)};
  if (auto wrong = f.end()) return *wrong;
  return w;
}

error_code refused(const http::reply& r) {
  if (r.code == 404 || r.code == 405) return errc::unsupported;
  if (r.code == 401 || r.code == 403) return errc::permission_denied;
  if (r.code == 507) return errc::out_of_memory;
  return errc::unavailable;
}

// By the first of its doors that opens. Steps stand still while the lender does, so it is not waited for as long as for others.
awaitable<result<peer_link>> reach(window_table windows, const loan_terms& terms) {
  error_code why = errc::not_found;
  for (const auto& url : terms.links) {
    auto link = co_await async_connect(windows, url, {.name = "loan/" + terms.id, .silence = 3s}, as_result);
    if (link && link->peer().name.ends_with('/' + terms.life)) co_return std::move(*link);
    if (link) link->close();  // another worker's door
    why = link ? make_error_code(errc::unavailable) : link.error();
    if (why == asio::error::operation_aborted) break;
  }
  co_return why;
}

}  // namespace

json::object to_json(const loan_terms& t) {
  return {{"id", t.id},
          {"life", t.life},
          {"links", json_of(t.links)},
          {"window", {{"id", t.window.id}, {"generation", t.window.generation}, {"size", t.window.size}}}};
}

parsed<loan_terms> read_loan(const json::value& v) {
  fields f(v, "loan");
  loan_terms t;
  t.id = f.id("id");
  t.life = f.id("life");
  t.links = f.texts("links", most_links, most_url_bytes);
  t.window = f.take<window_ref>("window", read_window);
  if (auto wrong = f.end()) return *wrong;
  return t;
}

awaitable<result<std::uint64_t>> lendable(http::client& from) {
  const auto got = co_await from.get("/v1/loans");
  if (!got) co_return got.error();
  if (got->code != 200) co_return refused(*got);
  const auto v = http::parse_json(got->body);
  if (!v) co_return errc::protocol;
  fields f(*v, "loans");
  (void)f.number("bytes", std::numeric_limits<std::uint64_t>::max());
  const auto free = f.number("free", std::numeric_limits<std::uint64_t>::max());
  (void)f.u32("loans");
  if (f.end()) co_return errc::protocol;
  co_return free;
}

awaitable<result<loan>> borrow(http::client& from, window_table windows, std::uint64_t bytes) {
  // Its memory is made first, page by page.
  const auto made = 5s + std::chrono::milliseconds(bytes / 500'000);
  const auto got = co_await from.ask({.method = http::verb::post,
                                      .target = "/v1/loans",
                                      .body = json::serialize(json::object{{"bytes", bytes}}),
                                      .first_byte = made});
  if (!got) co_return got.error();
  if (got->code != 201) co_return refused(*got);
  const auto v = http::parse_json(got->body);
  if (!v) co_return errc::protocol;
  const auto terms = read_loan(*v);
  if (!terms || terms->window.size != bytes) co_return errc::protocol;
  auto link = co_await reach(std::move(windows), *terms);
  if (!link) co_return link.error();
  co_return loan{std::move(*link), terms->window};
}

}  // namespace cokv::cluster

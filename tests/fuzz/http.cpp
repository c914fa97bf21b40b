// The HTTP server on a simulated network: however a client's bytes are cut, it gets the same answers, each of them an
// HTTP answer, and in the end nothing is left of it.
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "fuzz/input.hpp"
#include "http/server.hpp"

namespace cokv::fuzz {
namespace {

using http::exchange;
using http::status;
using http::verb;
using namespace std::chrono_literals;

void add_routes(http::server& s) {
  s.route(verb::post, "/echo", [](exchange& x) -> awaitable<void> {
    auto body = co_await x.read_all();
    if (body) co_await x.respond(status::ok, "text/plain", *body);
  });
  s.route(verb::get, "/hello/{name}:now",
          [](exchange& x) -> awaitable<void> {
            co_await x.respond(status::ok, "text/plain", x.request().parameter("name"));
          },
          {.query = {"q"}});
  s.route(verb::get, "/open",
          [](exchange& x) -> awaitable<void> {
            x.start(status::ok, "text/plain");
            co_await x.write("a");
            co_await x.write("b");
            co_await x.finish();
          },
          {.open = true});
}

awaitable<void> converse(const input& in, way how, std::string& heard) {
  const auto ex = co_await asio::this_coro::executor;
  http::api_keys keys;
  if (in.how & 1) keys.add("k");
  http::limits limits;
  limits.header_bytes = 1024;
  limits.body_bytes = 512;
  http::server server(ex, {.limit = limits, .keys = std::move(keys)});
  add_routes(server);
  server.listen({"localhost", 0});
  auto ended = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn(server.run());
    auto peer = co_await network::of(ex).async_connect(server.local_endpoint());
    group.spawn([&]() -> awaitable<void> {
      cutter cut(in, how);
      for (auto left = in.wire; !left.empty();) {
        const auto n = cut(left.size());
        auto [ec, sent] =
            co_await asio::async_write(peer, asio::buffer(left.data(), n), asio::as_tuple(asio::deferred));
        if (ec) break;
        left = left.subspan(n);
      }
    });
    for (char bytes[512];;) {
      auto n = co_await with_deadline(peer.async_read_some(asio::buffer(bytes)), 200s);
      if (!n) break;
      heard.append(bytes, *n);
    }
    peer.close();
    server.drain(0s);
  });
  require(ended || ended.error() == asio::error::operation_aborted, "a server ends when it is told to");
  require(server.connections() == 0, "nothing is left of a connection");
}

// What is not whole yet may be wrong already, which is seen now or when its time is over.
bool unfinished(unsigned code) { return code == 400 || code == 408 || code == 431 || code == 505; }

// Statuses and bodies: dates differ. Of answers to HEAD nobody knows by themselves where they end.
std::string answers(std::string_view heard, bool of_head) {
  namespace bh = boost::beast::http;
  std::string out;
  if (of_head) {
    for (std::size_t at = 0; (at = heard.find("HTTP/1.1 ", at)) != heard.npos; ++at) {
      const auto code = heard.substr(at, 12).substr(9);
      out += unfinished(static_cast<unsigned>(std::atoi(std::string(code).c_str()))) ? "refused" : std::string(code);
    }
    return out;
  }
  while (!heard.empty()) {
    bh::response_parser<bh::string_body> parser;
    parser.eager(true);
    error_code ec;
    std::size_t used = 0;
    while (!parser.is_done() && !ec) {
      const auto n = parser.put(asio::buffer(heard.substr(used)), ec);
      used += n;
      if (n == 0) break;
    }
    if (parser.need_eof() && parser.is_header_done() && used == heard.size()) {
      ec = {};
      parser.put_eof(ec);
    }
    if (ec == bh::error::need_more) break;  // cut by a reset: what it began is no answer
    require(!ec && parser.is_done(), "what a client hears are HTTP answers");
    heard.remove_prefix(used);
    const auto code = parser.get().result_int();
    out += unfinished(code) ? "refused\n" : std::to_string(code) + ' ' + parser.get().body() + '\n';
    switch (code) {
      case 200:
        reach("http: answered");
        break;
      case 100:
        reach("http: asked to go on");
        break;
      case 401:
        reach("http: unknown key");
        break;
      case 404:
        reach("http: no route");
        break;
      case 408:
        reach("http: too slow");
        break;
      case 413:
        reach("http: body too large");
        break;
      case 431:
        reach("http: header too large");
        break;
      default:
        reach("http: refused");
    }
  }
  return out;
}

std::string talk(const input& in, way how) {
  sim_context context(1);
  sim::net::of(context).faults.short_transfer = 0;
  std::string heard;
  bool done = false;
  asio::co_spawn(context.get_executor(), converse(in, how, heard), [&](std::exception_ptr e) {
    done = true;
    if (e) std::rethrow_exception(e);
  });
  context.run();
  require(done, "a conversation comes to its end");
  const std::string_view said(reinterpret_cast<const char*>(in.wire.data()), in.wire.size());
  return answers(heard, said.find("HEAD") != said.npos);
}

}  // namespace

void http(bytes in) {
  const input i(in);
  const auto whole = talk(i, way::whole), pieces = talk(i, way::pieces);
  // Up to what was refused: a refusal closes the connection, and may overtake what was still to be read.
  const auto of_whole = std::string_view(whole).substr(0, whole.find("refused"));
  const auto of_pieces = std::string_view(pieces).substr(0, pieces.find("refused"));
  require(of_whole.starts_with(of_pieces) || of_pieces.starts_with(of_whole),
          "answers do not depend on how a request was cut");
}

}  // namespace cokv::fuzz

// Clients that mean harm, or are broken in ways that look like it: what they get is a refusal, and a bound.
#include <malloc.h>

#include <boost/asio/write.hpp>

#include "http/metrics.hpp"
#include "http_fixture.hpp"

using namespace cokv;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;

namespace {

// Counts what it was asked on /hidden, which no request of these tests may reach.
struct routes {
  int* hidden;
  void operator()(http::server& s) const {
    s.route(verb::post, "/echo", [](exchange& x) -> awaitable<void> {
      auto body = co_await x.read_all();
      if (body) co_await x.respond(status::ok, "text/plain", *body);
    });
    const auto reached = [hidden = hidden](exchange& x) -> awaitable<void> {
      ++*hidden;
      co_await x.respond(status::ok, "text/plain", "hidden");
    };
    s.route(verb::get, "/hidden", reached);
    http::route_health(s);
  }
};

std::uint64_t heap() { return ::mallinfo2().uordblks; }

const std::string inner = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n";

}  // namespace

TEST_CASE("http hostile: a request whose end two readers may see in two places is refused, and the connection closed") {
  const std::string post = "POST /echo HTTP/1.1\r\nHost: x\r\n";
  const std::string chunk = "0\r\n\r\n";
  const auto length = [&](const std::string& value) {
    return post + "Content-Length:" + value + "\r\n\r\nbody" + inner;
  };
  const auto coding = [&](const std::string& fields) { return post + fields + "\r\n\r\n" + chunk + inner; };
  const auto chunks = [&](const std::string& body) {
    return post + "Transfer-Encoding: chunked\r\n\r\n" + body + chunk + inner;
  };
  const struct {
    std::string what, request;
  } table[] = {
      {"a length, then chunks", coding("Content-Length: 5\r\nTransfer-Encoding: chunked")},
      {"chunks, then a length", coding("Transfer-Encoding: chunked\r\nContent-Length: 5")},
      {"two lengths", post + "Content-Length: 4\r\nContent-Length: 38\r\n\r\nbody" + inner},
      {"the same length twice", post + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody" + inner},
      {"a list of lengths", length(" 4, 4")},
      {"a length with a sign", length(" +4")},
      {"a negative length", length(" -4")},
      {"a length in base 16", length(" 0x4")},
      {"a length with a space in it", length(" 4 4")},
      {"a length beyond 64 bits", length(" 18446744073709551620")},
      {"a length of nothing", length(" ")},
      {"a length and letters", length(" 4a")},
      {"another coding", coding("Transfer-Encoding: xchunked")},
      {"chunked, and then another", coding("Transfer-Encoding: chunked, identity")},
      {"chunked twice", coding("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked")},
      {"chunked twice in a list", coding("Transfer-Encoding: chunked, chunked")},
      {"a space before the colon", coding("Transfer-Encoding : chunked")},
      {"chunked with a control character", coding("Transfer-Encoding: \x0b"
                                                  "chunked")},
      {"chunks to HTTP/1.0", "POST /echo HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + inner},
      {"lines that end with LF", "POST /echo HTTP/1.1\nHost: x\nContent-Length: 4\n\nbody" + inner},
      {"a bare CR in a field", post + "A: b\rContent-Length: 4\r\n\r\nbody" + inner},
      {"a zero byte in a field", post + std::string("A: b\0c\r\n", 8) + "Content-Length: 4\r\n\r\nbody" + inner},
      {"a name with a space", post + "Content Length: 4\r\n\r\nbody" + inner},
      {"no name", post + ": 4\r\n\r\nbody" + inner},
      {"two hosts", post + "Host: y\r\nContent-Length: 4\r\n\r\nbody" + inner},
      {"a chunk with a sign", chunks("+4\r\nbody\r\n")},
      {"a negative chunk", chunks("-4\r\nbody\r\n")},
      {"a chunk with 0x", chunks("0x4\r\nbody\r\n")},
      {"a chunk beyond 64 bits", chunks("10000000000000004\r\nbody\r\n")},
      {"a chunk of 2^64 - 1", chunks("ffffffffffffffff\r\nbody\r\n")},
      {"a chunk without a size", chunks("\r\nbody\r\n")},
      {"a chunk that goes on", chunks("4\r\nbodybody\r\n")},
      {"a chunk that ends with LF", chunks("4\nbody\n")},
  };
  on_both_contexts([&] {
    return [](decltype(table)& rows) -> awaitable<void> {
      int hidden = 0;
      co_await with_site({}, routes{&hidden}, [&](site& s) -> awaitable<void> {
        for (const auto& row : rows) {
          CAPTURE(row.what);
          auto c = co_await s.connect();
          auto r = co_await c.ask(row.request);
          CHECK(r.result_int() >= 400);
          CHECK(r.result_int() != 599);
          CHECK(r[bh::field::connection] == "close");
          const auto next = co_await c.read();
          CHECK(next.result_int() == 599);  // the connection is over: nobody answers what was hidden
          CHECK(hidden == 0);
          CHECK((co_await s.ask(get("/healthz"))).result_int() == 200);
        }
      });
    }(table);
  });
}

TEST_CASE("http hostile: a chunked body that comes in the smallest pieces is what it would be at once") {
  const std::pair<std::string, std::string> table[] = {{"0\r\n\r\n", ""},
                                                       {"00;a=b\r\n\r\n", ""},
                                                       {"0\r\nA: b\r\n\r\n", ""},
                                                       {"1\r\nx\r\n0\r\n\r\n", "x"},
                                                       {"01\r\nx\r\n0\r\n\r\n", "x"},
                                                       {"2;a\r\nxy\r\n1\r\nz\r\n000\r\nA: b\r\n\r\n", "xyz"}};
  on_both_contexts([&] {
    return [](decltype(table)& rows) -> awaitable<void> {
      int hidden = 0;
      co_await with_site({}, routes{&hidden}, [&](site& s) -> awaitable<void> {
        for (const auto& [sent, got] : rows)
          for (std::size_t first = 0; first <= sent.size(); ++first) {
            CAPTURE(first);
            auto c = co_await s.connect();
            co_await c.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
                            sent.substr(0, first));
            for (std::size_t i = first; i < sent.size(); ++i) {
              co_await pause(100us);
              co_await c.send(sent.substr(i, 1));
            }
            const auto r = co_await c.read();
            CHECK(r.result_int() == 200);
            CHECK(r.body() == got);
            CHECK((co_await c.ask(get("/healthz"))).result_int() == 200);
          }
      });
    }(table);
  });
}

TEST_CASE("http hostile: what is around chunks is bounded by what is in them") {
  on_both_contexts([] {
    return []() -> awaitable<void> {
      int hidden = 0;
      co_await with_site({}, routes{&hidden}, [&](site& s) -> awaitable<void> {
        const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        const auto flood = [&](std::string piece) -> awaitable<void> {
          auto c = co_await s.connect();
          const auto before = heap();
          std::size_t sent = 0, at_answer = 0;
          unsigned code = 0;
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            group.spawn([&]() -> awaitable<void> {
              error_code ec = co_await c.send(head);
              for (; !ec && sent < (std::size_t{16} << 20); sent += piece.size()) ec = co_await c.send(piece);
            });
            code = (co_await c.read()).result_int();
            at_answer = sent;
            group.cancel();
          });
          CHECK((code == 400 || code == 413));
          CHECK(at_answer < (8 << 20));  // it was not listened to for ever
          CHECK(heap() < before + (8 << 20));
          CHECK((co_await s.ask(get("/healthz"))).result_int() == 200);
        };
        co_await flood("1;" + std::string(10'000, 'x') + "\r\nb\r\n");  // an extension in each chunk
        co_await flood(std::string(10'000, '0'));                       // a size that does not end
        co_await flood("1;x=\"" + std::string(10'000, 'y'));            // an extension that does not end
        co_await flood("0\r\nA: " + std::string(10'000, 'z'));          // a trailer that does not end
        std::string lines = "0\r\n";
        for (int i = 0; i < 1000; ++i) lines += "A" + std::to_string(i) + ": x\r\n";
        co_await flood(lines);
        // One small byte at a time is odd, but a body.
        std::string small = head;
        for (int i = 0; i < 2000; ++i) small += "1\r\nx\r\n";
        auto r = co_await s.ask(small + "0\r\n\r\n");
        CHECK(r.result_int() == 200);
        CHECK(r.body().size() == 2000);
      });
    }();
  });
}

TEST_CASE("http hostile: a body without an end, and a header without one, are cut off within their bounds") {
  on_both_contexts([] {
    return []() -> awaitable<void> {
      int hidden = 0;
      co_await with_site({}, routes{&hidden}, [&](site& s) -> awaitable<void> {
        const std::string chunked = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        const std::string counted = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n\r\n";
        const struct {
          std::string head, piece;
          unsigned code;
        } table[] = {
            {chunked, "2710\r\n" + std::string(10'000, 'x') + "\r\n", 413},
            {counted, std::string(10'000, 'x'), 413},
            {"GET /echo HTTP/1.1\r\n", "A: " + std::string(5000, 'x') + "\r\n", 431},
            {"GET /echo HTTP/1.1\r\n", std::string(5000, 'x'), 431},
            {"GET /", std::string(5000, 'x'), 431},
            {"", std::string(5000, 'x'), 431},
        };
        for (const auto& row : table) {
          CAPTURE(row.head);
          CAPTURE(row.piece.substr(0, 8));
          auto c = co_await s.connect();
          const auto before = heap();
          unsigned code = 0;
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            group.spawn([&]() -> awaitable<void> {
              error_code ec = co_await c.send(row.head);
              for (int i = 0; !ec && i < 3000; ++i) ec = co_await c.send(row.piece);
            });
            code = (co_await c.read()).result_int();
            group.cancel();
          });
          CHECK((code == row.code || code == 400));
          CHECK(heap() < before + (8 << 20));
          CHECK((co_await s.ask(get("/healthz"))).result_int() == 200);
        }
      });
    }();
  });
}

TEST_CASE("http hostile: a flood of tiny requests is answered one by one, in bounded memory, and others are served") {
  on_real_context([]() -> awaitable<void> {
    int hidden = 0;
    co_await with_site({}, routes{&hidden}, [&](site& s) -> awaitable<void> {
      constexpr int requests = 100'000, at_once = 100;
      const auto one = get("/healthz");
      auto c = co_await s.connect();
      const auto before = heap();
      std::uint64_t most = 0;
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> {
          std::string many;
          for (int i = 0; i < at_once; ++i) many += one;
          for (int i = 0; i < requests / at_once; ++i) {
            if (co_await c.send(many)) break;
            most = std::max(most, heap());
            if (i % 100 == 0) CHECK((co_await s.ask(one)).result_int() == 200);
          }
        });
        int answered = 0;
        while ((co_await c.read()).result_int() == 200 && ++answered < requests) continue;
        CHECK(answered == requests);
      });
      CHECK(bool(v));
      CHECK(most < before + (8 << 20));
    });
  });
}

TEST_CASE("http hostile: a body that is shorter or longer than its length says") {
  on_both_contexts([] {
    return []() -> awaitable<void> {
      int hidden = 0;
      co_await with_site({}, routes{&hidden}, [&](site& s) -> awaitable<void> {
        {  // shorter: nobody is answered who did not finish asking
          auto c = co_await s.connect();
          co_await c.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nshort");
          c.stream.shutdown_send();
          CHECK((co_await c.read()).result_int() == 599);
        }
        {  // longer: what is beyond is the next request, and none
          auto c = co_await s.connect();
          auto r = co_await c.ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbodyand more\r\n\r\n");
          CHECK(r.body() == "body");
          CHECK((co_await c.read()).result_int() == 400);
          CHECK(co_await c.ended());
        }
      });
    }();
  });
}

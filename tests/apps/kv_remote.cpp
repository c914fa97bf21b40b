#include "serve/remote.hpp"

#include <doctest/doctest.h>

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <fstream>

#include "cokv/runtime/error.hpp"

using namespace cokv;
using serve::node_urls;

namespace {

std::vector<std::string> names(const serve::remote& r) {
  std::vector<std::string> out;
  for (const auto& n : r.nodes()->nodes()) out.push_back(n.name);
  return out;
}

using list = std::vector<std::string>;

}  // namespace

TEST_CASE("--kv-remote: URLs by comma and by line") {
  CHECK(node_urls("http://a:1") == list{"http://a:1"});
  CHECK(node_urls("http://a:1,http://b:2/") == list{"http://a:1", "http://b:2"});
  CHECK(node_urls(" http://a:1 , http://b:2,") == list{"http://a:1", "http://b:2"});
  CHECK(node_urls("# ours\nhttp://a:1\r\n\n  http://b:2  \n#http://c:3") == list{"http://a:1", "http://b:2"});
  CHECK(node_urls("redis://a:1,b:2,http://c:3") == list{"redis://a:1,b:2", "http://c:3"});
  CHECK(node_urls("http://a:1\nb:2") == list{"http://a:1", "b:2"});
  CHECK(node_urls("").empty());
  CHECK(node_urls(",\n,").empty());
}

TEST_CASE("--kv-remote: which servers are on this machine") {
  for (const char* url : {"unix:///run/x", "http://127.0.0.1:1", "https://localhost:1", "http://[::1]:1",
                          "http://localhost", "http://127.1.2.3"})
    CHECK(serve::any_on_this_machine({"http://a:1", url}));
  CHECK(!serve::any_on_this_machine({"http://a:1", "http://10.0.0.127:1", "redis://127.0.0.1:1"}));
  for (const char* url :
       {"http://localhost.example:1", "http://localhosts", "http://127.example:1", "http://127.0.0.1.example",
        "https://127.0.0.1@a:1", "http://[::1:2]:1", "http://[::ffff:127.0.0.1]:1", "unix://run/x"}) {
    CAPTURE(url);
    CHECK(!serve::any_on_this_machine({url}));
  }
  CHECK(!serve::any_on_this_machine({}));
  asio::io_context context(1);
  serve::options o;
  o.kv_remote = "http://127.0.0.1:1";
  CHECK(serve::remote::open(context.get_executor(), o)->on_this_machine());
  o.kv_remote = "http://a:1,http://127.0.0.1:1";
  CHECK(serve::remote::open(context.get_executor(), o)->on_this_machine());
  o.kv_remote = "http://a:1,http://b:1";
  CHECK(!serve::remote::open(context.get_executor(), o)->on_this_machine());
}

TEST_CASE("--kv-remote: one URL is a store, several are nodes, a file is read again") {
  asio::io_context context(1);
  const auto ex = context.get_executor();
  serve::options o;
  o.kv_remote = "http://127.0.0.1:1";
  CHECK(!serve::remote::open(ex, o)->nodes());
  o.kv_remote = "redis://127.0.0.1:1,127.0.0.1:2";  // hosts of one cluster
  const auto redis = serve::remote::open(ex, o);
  CHECK(!redis->nodes());
  CHECK(redis->blocks()->info().kind == "redis");
  o.kv_remote = "http://127.0.0.1:1,http://127.0.0.1:2";
  CHECK(names(*serve::remote::open(ex, o)) == list{"http://127.0.0.1:1", "http://127.0.0.1:2"});

  const auto path = std::filesystem::temp_directory_path() / ("cokv-nodes-" + std::to_string(::getpid()));
  const auto write = [&](const char* text) { std::ofstream(path) << text; };
  write("http://127.0.0.1:1\n");
  o.kv_remote = "@" + path.string();
  const auto r = serve::remote::open(ex, o);
  CHECK(names(*r) == list{"http://127.0.0.1:1"});
  write("http://127.0.0.1:3\nhttp://127.0.0.1:1\n");
  r->reload();
  CHECK(names(*r) == list{"http://127.0.0.1:3", "http://127.0.0.1:1"});
  for (const char* bad : {"", "nonsense\n", "http://127.0.0.1:1\nhttp://127.0.0.1:1\n"}) {
    write(bad);
    r->reload();
    CHECK(names(*r) == list{"http://127.0.0.1:3", "http://127.0.0.1:1"});
  }
  std::filesystem::remove(path);
  r->reload();
  CHECK(names(*r).size() == 2);
}

TEST_CASE("--kv-remote: what can't be used is refused by the flag's name") {
  asio::io_context context(1);
  for (const char* bad :
       {"nowhere", "http://a:1,nowhere", "http://a:1,http://a:1", "redis://a/1", "@/nonexistent/file", ",", "@"}) {
    serve::options o;
    o.kv_remote = bad;
    try {
      (void)serve::remote::open(context.get_executor(), o);
      FAIL("taken: ", bad);
    } catch (const config_error& e) {
      CHECK(std::string(e.what()).starts_with("--kv-remote"));
    }
  }
}

// Who reads a pipeline's answers from another process: what it can't read is told, and so is that it has ended.
#include "fit/reader.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/net.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::fit;
using namespace cokv::test;

namespace {

// All that comes until the other process ends.
std::string said_by(const child& c) {
  std::string all;
  char some[64];
  for (ssize_t n = 0; (n = ::recv(c.link(), some, sizeof some, 0)) > 0;) all.append(some, static_cast<std::size_t>(n));
  return all;
}

std::uint16_t port_of_nobody(const asio::any_io_executor& ex) {
  return network::of(ex).listen({"127.0.0.1", 0}).value().local_endpoint().port;
}

}  // namespace

TEST_CASE("fit: a process says what it is told to, and what it throws") {
  child answers([](int link) {
    for (int n = 0; receive_all(link, &n, sizeof n);) {
      if (n == 0) throw config_error("no nought");
      const std::string digits = std::to_string(2 * n);
      send_all(link, digits.data(), digits.size());
    }
  });
  for (const int n : {21, 0}) CHECK(send_all(answers.link(), &n, sizeof n));
  CHECK(said_by(answers) == "42no nought");
  int gone = 1;
  CHECK(!receive_all(answers.link(), &gone, sizeof gone));
}

TEST_CASE("fit: a process ends with whoever made it, whatever it is at") {
  int watch[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, watch) == 0);
  {
    child busy([&](int) {
      ::close(watch[0]);
      for (;;) ::pause();
    });
    ::close(watch[1]);
  }
  char none;
  CHECK(::recv(watch[0], &none, 1, 0) == 0);  // its end is closed, for it is gone
  ::close(watch[0]);
}

TEST_CASE("fit: a server that does not answer is told with what there is instead") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    const question q{.port = port_of_nobody(ex), .sequences = 2, .answer = 3};
    std::string said;
    try {
      (void)co_await read_answers(q);
    } catch (const config_error& e) {
      said = e.what();
    }
    CHECK(said.starts_with("--workers: an answer of a pipeline: "));
    CHECK(said.find("refused") != std::string::npos);
  });
}

TEST_CASE("fit: another process reads, and says in words what it could not") {
  reader outside;
  run_real([&](asio::any_io_executor ex) -> awaitable<void> {
    for (int i = 0; i < 2; ++i) {  // it goes on
      std::string said;
      try {
        (void)co_await outside.ask({.port = port_of_nobody(ex)});
      } catch (const config_error& e) {
        said = e.what();
      }
      CHECK(said.starts_with("--workers: an answer of a pipeline: "));
    }
  });
}

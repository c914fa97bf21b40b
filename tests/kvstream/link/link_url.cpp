#include "link/link_url.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"

using namespace cokv;
using detail::link_scheme, detail::link_url, detail::parse_link_url;

TEST_CASE("link_url: a scheme and a place, written as they were read") {
  const auto tcp = parse_link_url("tcp://[::1]:7600").value();
  CHECK(tcp.scheme == link_scheme::tcp);
  CHECK(tcp.at == endpoint{"::1", 7600});
  CHECK(tcp.to_string() == "tcp://[::1]:7600");

  const auto shm = parse_link_url("shm:///run/cokv/decode 0.sock").value();
  CHECK(shm.scheme == link_scheme::shm);
  CHECK(shm.at == endpoint::local("/run/cokv/decode 0.sock"));
  CHECK(shm.to_string() == "shm:///run/cokv/decode 0.sock");

  const auto ipc = parse_link_url("cuda_ipc:///run/cokv/decode 0.sock").value();
  CHECK(ipc.scheme == link_scheme::shm);
  CHECK(ipc.of_devices);
  CHECK(ipc.at == shm.at);
  CHECK(ipc.to_string() == "cuda_ipc:///run/cokv/decode 0.sock");

  const auto ucx = parse_link_url("ucx://10.0.0.2:7600").value();
  CHECK(ucx.scheme == link_scheme::ucx);
  CHECK(ucx.at == endpoint{"10.0.0.2", 7600});
  CHECK(ucx.to_string() == "ucx://10.0.0.2:7600");
  const auto nccl = parse_link_url("nccl://10.0.0.2:7600").value();
  CHECK(nccl.scheme == link_scheme::nccl);
  CHECK(nccl.at == ucx.at);
  CHECK(nccl.to_string() == "nccl://10.0.0.2:7600");

  const auto rank = parse_link_url("mpi://12").value();
  CHECK(rank.scheme == link_scheme::mpi);
  CHECK(rank.rank == 12);
  CHECK(rank.to_string() == "mpi://12");
  const auto any = parse_link_url("mpi://").value();
  CHECK(any.rank == link_url::any_rank);
  CHECK(any.to_string() == "mpi://");
}

TEST_CASE("link_url: what is none is refused") {
  for (auto text : {"", "tcp", "://x", "tcp://", "tcp://host", "tcp://host:x", "ucx://", "ucx://host", "nccl://", "nccl://host", "shm://", "cuda_ipc://", "cuda_ipc://host:1",
                    "shm://run", "shm:///run/\n", "mpi://-1", "mpi://+1", "mpi://1x", "mpi://1 ", "mpi://99999999999"})
    CHECK_MESSAGE(parse_link_url(text).error() == errc::invalid_argument, text);
  CHECK(parse_link_url("http://x:1").error() == errc::unsupported);
}

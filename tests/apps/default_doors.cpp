#include "serve/default_doors.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>

using namespace cokv;

TEST_CASE("default doors: a socket, UCX where there is an adapter and the library, and TCP, in this order") {
  const auto folder = std::filesystem::temp_directory_path() / ("cokv-adapters-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const auto doors = [&](bool on_gpu = false) {
    return serve::default_doors("10.0.0.2", "life", on_gpu, "/run", folder);
  };
  const std::vector<std::string> plain{"shm:///run/cokv-life.kv", "tcp://10.0.0.2:0"};
  CHECK(doors() == plain);
  CHECK(serve::default_doors("10.0.0.2", "life", false, "/run", folder / "none") == plain);
  std::ofstream(folder / "mlx5_0") << '\n';
  auto all = plain;
  if (link_library("ucx")) all.insert(all.begin() + 1, "ucx://10.0.0.2:0");
  CHECK(doors() == all);
  all.insert(all.begin(), "cuda_ipc:///run/cokv-life.gpu");
  CHECK(doors(true) == all);
  std::filesystem::remove_all(folder);
}

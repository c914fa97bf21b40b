// The command on a machine whose GPUs are stand-ins for CUDA, cuBLASLt and the library's kernels: what needs processes with devices
// runs where there is none. Slow; COKV_FAKE_CUDA_DEVICES says how many there are, 1 unless told.
#include <cstdlib>
#include <iostream>

#include "cli/cli.hpp"
#include "kernel/cuda/cublaslt_api.hpp"
#include "support/fake_cublaslt.hpp"
#include "support/fake_cuda.hpp"
#include "support/fake_engine_kernels.hpp"
#include "support/fake_pack_kernel.hpp"

int main(int argc, char** argv) {
  using namespace cokv::test;
  const char* devices = std::getenv("COKV_FAKE_CUDA_DEVICES");
  fake_cuda::reset({.mode = fake_cuda::mode::threaded, .devices = devices ? std::atoi(devices) : 1});
  fake_cuda::know_engine_kernels();
  fake_cuda::know_pack_kernels();
  fake_cublaslt::reset();
  const auto products = fake_cublaslt::table();
  cokv::kernel::cublaslt_api::stand_in(&products);
  const int status = cokv::cli::run(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
  const auto wrong = fake_cuda::violations();
  for (const auto& what : wrong) std::cerr << "fake_cuda: " << what << '\n';
  return wrong.empty() ? status : 70;
}

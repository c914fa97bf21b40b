// The packing kernels on fake_cuda: every thread of every block, by the code that nvcc compiles. What they write is
// poisoned when they begin and comes some blocks at a step, in an order that the seed picks; what the device doesn't
// have is a violation.
#pragma once

namespace cokv::test::fake_cuda {

void know_pack_kernels();

}  // namespace cokv::test::fake_cuda

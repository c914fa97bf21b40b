// The engine's own kernels as fake_cuda runs them: the code that devices run, block by block in the order of the seed,
// with poison in shared memory and in what they write.
#pragma once

namespace cokv::test::fake_cuda {

void know_engine_kernels();

}  // namespace cokv::test::fake_cuda

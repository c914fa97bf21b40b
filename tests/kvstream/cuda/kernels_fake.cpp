// fake_cuda knows the packing kernels before a test begins.
#include "support/fake_pack_kernel.hpp"

namespace {
[[maybe_unused]] const bool known = (cokv::test::fake_cuda::know_pack_kernels(), true);
}

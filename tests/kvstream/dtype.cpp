#include "cokv/kvstream/dtype.hpp"

#include <doctest/doctest.h>

TEST_CASE("every dtype is parsed from its own name") {
  for (auto t : {cokv::dtype::f32, cokv::dtype::f16, cokv::dtype::bf16, cokv::dtype::fp8_e4m3, cokv::dtype::fp8_e5m2,
                 cokv::dtype::u8})
    CHECK(cokv::parse_dtype(cokv::to_string(t)) == t);
  CHECK(!cokv::parse_dtype("float"));
}

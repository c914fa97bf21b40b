// Families and types in turn, for tests that run many times.
#pragma once

#include "engine/cuda/library.hpp"
#include "engine/golden.hpp"

namespace cokv::test {

// f(family, type) for every one, or for one that it is the turn of.
template <class F>
void some_families(bool all, F f) {
  static unsigned turn = 0;
  for (std::size_t i = 0; i < families().size(); ++i)
    for (auto type : {dtype::f32, dtype::bf16})
      if (all || (i * 2 + (type == dtype::bf16)) == turn % (2 * families().size())) {
        INFO(families()[i].name, " in ", to_string(type));
        f(families()[i], type);
      }
  ++turn;
}

}  // namespace cokv::test

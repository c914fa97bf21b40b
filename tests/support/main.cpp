#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "support/sim_trace.hpp"

int main(int argc, char** argv) {
  if (const char* file = std::getenv("COKV_TRACE"); file && *file) try {
      cokv::test::trace_simulations(file);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "COKV_TRACE: %s\n", e.what());
      return 2;
    }
  return doctest::Context(argc, argv).run();
}
